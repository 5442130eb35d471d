#pragma once

#include <memory>
#include <string>

#include "engine/calibrate.h"

namespace minfer {

// Throws Usage for the WikiText-2 test text, on which results are measured.
std::string read_calibration_text(const std::string& path);

// What --method gptq runs: the model in full precision, over a text.
struct LoadedCalibration {
  std::unique_ptr<Backend> backend;
  Model model;
  std::unique_ptr<TextCalibration> calibration;
};

// Throws Usage for a text that is too short and for a model without a tokenizer.
std::unique_ptr<LoadedCalibration> load_calibration(const TensorSource& source,
                                                    const std::string& text, int n_threads);

}  // namespace minfer
