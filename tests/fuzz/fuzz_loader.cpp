#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/fuzz_sample.h"
#include "tests/support/load_everything.h"

// libFuzzer's entry point; the environment's MINFER_FUZZ_SAMPLE names the format. What a loader may
// answer is a model or an Input error; anything else ends the process.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const minfer::test::SampleDir dir(minfer::test::fuzz_sample());
  dir.write({reinterpret_cast<const char*>(data), size});
  try {
    minfer::test::load_everything(dir.model());
  } catch (const minfer::Error& e) {
    const bool one_line = std::string_view(e.what()).find('\n') == std::string_view::npos;
    if (e.kind() != minfer::ErrorKind::Input || !one_line) throw;
  }
  return 0;
}
