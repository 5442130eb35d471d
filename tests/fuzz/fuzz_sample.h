#pragma once

#include <string_view>

#include "kernels/base/error.h"
#include "tests/support/sample_models.h"

namespace minfer::test {

// The sound model whose file is fuzzed.
inline SampleModel fuzz_sample() {
  for (const SampleModel& sample : sample_models()) {
    if (std::string_view(sample.name) == MINFER_FUZZ_SAMPLE) return sample;
  }
  throw Error(ErrorKind::Internal, "no sample " MINFER_FUZZ_SAMPLE);
}

}  // namespace minfer::test
