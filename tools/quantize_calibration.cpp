#include "tools/quantize_calibration.h"

#include "tools/device.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

// The heading of the first article, in the raw file and in every text made from it.
constexpr std::string_view kTestTextMark = " = Robert Boulter = ";

}  // namespace

std::string read_calibration_text(const std::string& path) {
  std::string text = read_text(path);
  MINFER_REQUIRE(Usage, text.find(kTestTextMark) == std::string::npos, "--calibration ",
                 shortened(path),
                 ": holds the WikiText-2 test text, which perplexity is measured on");
  return text;
}

std::unique_ptr<LoadedCalibration> load_calibration(const TensorSource& source,
                                                    const std::string& text, int n_threads) {
  auto loaded = std::make_unique<LoadedCalibration>();
  loaded->backend = make_backend({.n_threads = n_threads, .device = "cpu"});
  loaded->model = load_model(source, *loaded->backend);
  MINFER_REQUIRE(Usage, loaded->model.tokenizer != nullptr,
                 "--method gptq: the model has no tokenizer to read a text with");
  const Tokenizer& tokenizer = *loaded->model.tokenizer;
  CalibrationOptions options;
  if (tokenizer.adds_bos()) options.bos = tokenizer.bos();
  loaded->calibration = std::make_unique<TextCalibration>(
      loaded->model, *loaded->backend, tokenizer.encode(text, {.add_bos = false}), options,
      n_threads);
  return loaded;
}

}  // namespace minfer
