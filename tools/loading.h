#pragma once

#include <string>

#include "models/model.h"
#include "tools/device.h"

namespace minfer {

// A load in a straight line: open_model, the backend for it, what the session to come takes, and
// then the weights.

// open_model for a command that reads or writes text: Input where there is no tokenizer.
OpenedModel open_with_tokenizer(const std::string& path, const std::string& tokenizer_path);

// The backend for a model, which is cut for --tp ranks. A card computes in the float type of the
// model's weights.
std::unique_ptr<Backend> make_backend_for(const DeviceOptions& options, OpenedModel& opened);

// load_weights with a progress bar and the model's warnings in the log. Throws Interrupted on
// Ctrl-C.
Model load_with_progress(OpenedModel opened, Backend& backend, const SessionMemory& session,
                         bool quiet);

}  // namespace minfer
