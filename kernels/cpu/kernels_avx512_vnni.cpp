// The int8 matmuls for AVX-512 F, BW, DQ, VL and VNNI; built with those flags on x86-64 alone.
// Everything here and in what it includes is local to this file, see kernels.h.

#include "kernels/cpu/kernels.h"

// The instruction set comes first, then the code that is written with it.
// clang-format off
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/dot_avx512_vnni.h"
#include "kernels/cpu/vector_matmul.h"
#include "kernels/cpu/vector_steps.h"
#include "kernels/cpu/vector_input.h"
#include "kernels/cpu/vector_planes.h"
#include "kernels/cpu/vector_bytes.h"
// clang-format on

namespace minfer::cpu {

ByteMatmuls avx512_vnni_matmuls() {
  return {.symmetric = matmul_bytes<InputForm::Symmetric>,
          .asymmetric = matmul_bytes<InputForm::Asymmetric>,
          .quantize = quantize_input,
          .planes = matmul_bytes<InputForm::Planes>,
          .quantize_planes = quantize_planes};
}

}  // namespace minfer::cpu
