#pragma once

#include "kernels/cpu/kernels.h"

namespace minfer::cpu {

// The plain loops behind the fields of CpuKernels.
void reference_matmul_codes(const MatmulPiece& piece, const PackedCodes& w,
                            const FloatInput& input);
void reference_matmul_int8(const MatmulPiece& piece, const PackedCodes& w, const InputBlock* input);
void reference_quantize_input(InputBlock* out, const float* x, int64_t n_rows, int64_t cols,
                              const InputFormat& format);

}  // namespace minfer::cpu
