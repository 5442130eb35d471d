#pragma once

#include <cstdlib>
#include <string>

#include "kernels/base/error.h"
#include "tests/support/sample_models.h"

namespace minfer::test {

// The sound model whose file is fuzzed: the sample named by the environment's MINFER_FUZZ_SAMPLE.
inline SampleModel fuzz_sample() {
  const char* const set = std::getenv("MINFER_FUZZ_SAMPLE");
  const std::string name = set != nullptr ? set : "";
  for (const SampleModel& sample : sample_models()) {
    if (sample.name == name) return sample;
  }
  throw Error(ErrorKind::Usage, "MINFER_FUZZ_SAMPLE names no sample: '" + name + "'");
}

}  // namespace minfer::test
