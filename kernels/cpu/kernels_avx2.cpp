// The kernels for AVX2, FMA and F16C; built with those flags on x86-64 alone. Everything here and
// in what it includes is local to this file, see kernels.h.

#include <utility>

#include "kernels/cpu/kernels.h"

// The instruction set comes first, then the code that is written with it.
// clang-format off
#include "kernels/cpu/simd_avx2.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/dot_avx2.h"
#include "kernels/cpu/vector_matmul.h"
#include "kernels/cpu/vector_steps.h"
#include "kernels/cpu/vector_codes.h"
#include "kernels/cpu/vector_input.h"
#include "kernels/cpu/vector_bytes.h"
#include "kernels/cpu/vector_attention.h"
#include "kernels/cpu/vector_rows.h"
#include "kernels/cpu/vector_kernels.h"
// clang-format on

namespace minfer::cpu {

const CpuKernels& avx2_kernels() {
  static constexpr CpuKernels kKernels =
      vector_kernels({.symmetric = matmul_bytes<InputForm::Symmetric>,
                      .asymmetric = matmul_bytes<InputForm::Asymmetric>,
                      .quantize = quantize_input});
  return kKernels;
}

}  // namespace minfer::cpu
