// The products of bytes for AVX-512 F, BW, DQ, VL and VNNI; built with those flags on x86-64 alone.
// Everything here and in what it includes is local to this file, see kernels.h.

#include "kernels/cpu/kernels.h"

// The instruction set first, then what is written over it.
// clang-format off
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/dot_avx512_vnni.h"
#include "kernels/cpu/vector_matmul.h"
#include "kernels/cpu/vector_int8.h"
// clang-format on

namespace minfer::cpu {

Int8Products avx512_vnni_products() { return kInt8Products; }

}  // namespace minfer::cpu
