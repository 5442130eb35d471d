#pragma once

#include <string>

#include "models/model.h"
#include "tools/device.h"

namespace minfer {

// The backend for a model: a card computes in the float type of its weights.
std::unique_ptr<Backend> make_backend_for(const DeviceOptions& options, const std::string& path);

// load_model with a progress bar and its warnings in the log. Throws Interrupted on Ctrl-C.
Model load_with_progress(const std::string& path, Backend& backend,
                         const std::string& tokenizer_path, bool quiet,
                         const SessionMemoryOf& session_memory = nullptr);

// The same for a command that reads or writes text: Input where there is no tokenizer.
Model load_with_tokenizer(const std::string& path, Backend& backend,
                          const std::string& tokenizer_path, bool quiet,
                          const SessionMemoryOf& session_memory = nullptr);

}  // namespace minfer
