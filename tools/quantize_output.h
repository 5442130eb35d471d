#pragma once

#include <string>

#include "loaders/earlier_output.h"
#include "models/quantize/plan.h"

namespace minfer {

// What `minfer quantize` writes, by its options and by OUT's name.
struct OutputForm {
  std::string gguf;  // "f16", "q8_0", "q4_0"; empty: no GGUF file
  bool single_file = false;

  OutputKind kind() const;
};

// OUT's name says the form where no option does: x.gguf is GGUF in F16, x.safetensors a single
// file. Throws Usage where both say different things, and where OUT is a type's name ("Q4_K_M").
OutputForm form_of_output(const std::string& output, OutputForm by_options);

// Throws Usage where the plan quantizes a matrix that has about 4 bits already.
void require_not_quantized_twice(const QuantizePlan& plan);

}  // namespace minfer
