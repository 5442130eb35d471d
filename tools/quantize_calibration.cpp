#include "tools/quantize_calibration.h"

#include "loaders/checksum.h"
#include "tools/device.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

// The heading of the first article, in the raw file and in every text made from it.
constexpr std::string_view kTestTextMark = " = Robert Boulter = ";

}  // namespace

std::unique_ptr<LoadedCalibration> load_calibration(const TensorSource& source,
                                                    const std::string& text_path, int n_threads) {
  const std::string text = read_text(text_path);
  MINFER_REQUIRE(Usage, text.find(kTestTextMark) == std::string::npos, "--calibration ",
                 shortened(text_path),
                 ": holds the WikiText-2 test text, which perplexity is measured on");
  auto loaded = std::make_unique<LoadedCalibration>();
  loaded->text_sha256 = sha256_hex(text);
  loaded->backend = make_backend({.n_threads = n_threads});
  loaded->model = load_model(source, *loaded->backend);
  MINFER_REQUIRE(Usage, loaded->model.tokenizer != nullptr,
                 "--method gptq: the model has no tokenizer to read a text with");
  loaded->calibration = std::make_unique<TextCalibration>(loaded->model, *loaded->backend,
                                                          loaded->model.tokenizer->encode(text, {}),
                                                          CalibrationOptions{}, n_threads);
  return loaded;
}

}  // namespace minfer
