#pragma once

#include <memory>
#include <string>

#include "loaders/model_writer.h"
#include "models/quantize/plan.h"

namespace minfer {

// Options for the export of a model to one GGUF file that llama.cpp can read.
struct GgufExportOptions {
  std::string output;
  bool replace = false;               // whether to replace an existing output
  DType type = DType::F16;            // F16, Q8_0 or Q4_0
  std::string tokenizer_source = {};  // a path for load_tokenizer; empty: the keys of a GGUF source
};

// Sets the types of the plan's outputs: matrices get `type`, but Q8_0 for the embedding and the
// output matrix if `type` is Q4_0, and F16 if rows are not whole blocks. Vectors get F32.
void choose_gguf_types(QuantizePlan& plan, DType type);

// choose_gguf_types() must have been called. Throws System, and Input if the model has an attention
// window, which GGUF cannot express for its architecture, no tokenizer, which llama.cpp needs, or a
// tokenizer that GGUF cannot express.
std::unique_ptr<ModelWriter> make_gguf_model_writer(const TensorSource& source,
                                                    const QuantizePlan& plan,
                                                    const GgufExportOptions& options);

}  // namespace minfer
