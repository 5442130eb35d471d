#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/quantize/quantize_model.h"

namespace minfer {

// What `minfer quantize` has done or, in a dry run, would do.
struct QuantizeReport {
  std::string source, source_format;  // name and format of the input
  std::string scheme;                 // "int4 g64 mse"
  std::string calibration = "none";   // or the "sha256 ..." of gptq's text
  std::vector<QuantizedTensorReport> tensors;

  struct Run {  // of this run alone, so not in the report that lies in the output
    std::string output;
    double seconds = 0;
  };
  std::optional<Run> run;  // absent in a dry run, which knows no errors
};

//   with_tensors  a row for each tensor
std::string to_text(const QuantizeReport& report, bool with_tensors);
// `with_run`: for stdout; without it the text depends on source and options alone.
std::string to_json(const QuantizeReport& report, bool with_run);

}  // namespace minfer
