// The kernels for AVX-512 F, BW, DQ and VL; built with those flags on x86-64 alone. Everything here
// and in what it includes is local to this file, see kernels.h.

#include <utility>

#include "kernels/cpu/kernels.h"

// The instruction set comes first, then the code that is written with it.
// clang-format off
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_matmul.h"
#include "kernels/cpu/vector_steps.h"
#include "kernels/cpu/vector_codes.h"
#include "kernels/cpu/vector_attention.h"
#include "kernels/cpu/vector_rows.h"
#include "kernels/cpu/vector_kernels.h"
// clang-format on

namespace minfer::cpu {

CpuKernels avx512_kernels(const ByteMatmuls& bytes) { return vector_kernels(bytes); }

}  // namespace minfer::cpu
