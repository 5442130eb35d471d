#pragma once

#include <memory>
#include <string>

#include "loaders/model_writer.h"
#include "models/quantize/plan.h"

namespace minfer {

// A model as one GGUF file, as llama.cpp reads it.
struct GgufExportOptions {
  std::string output;
  bool replace = false;               // an output that is there already
  DType type = DType::F16;            // F16, Q8_0 or Q4_0
  std::string tokenizer_source = {};  // a path for load_tokenizer; empty: the keys of a GGUF source
};

// Makes the plan's outputs what a file of this type has: matrices of `type`, but Q8_0 for the
// embedding and the output of a Q4_0 file, and F16 where rows are no whole blocks; vectors F32.
void choose_gguf_types(QuantizePlan& plan, DType type);

// Throws Input where the model has an attention window, which such files cannot say, no tokenizer,
// which llama.cpp asks for, or one that GGUF has no form for; System. The plan's types have been
// chosen.
std::unique_ptr<ModelWriter> make_gguf_model_writer(const TensorSource& source,
                                                    const QuantizePlan& plan,
                                                    const GgufExportOptions& options);

}  // namespace minfer
