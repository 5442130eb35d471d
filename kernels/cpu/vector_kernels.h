#pragma once

// The table of the vector kernels of one instruction set.

namespace minfer::cpu {
namespace {

constexpr CpuKernels vector_kernels(const ByteMatmuls& bytes) {
  return {
      .name = kIsaName,
      .matmul_f32 = matmul<float>,
      .matmul_f16 = matmul<f16>,
      .matmul_bf16 = matmul<bf16>,
      .matmul_codes = matmul_codes,
      .bytes = bytes,
      .attention_f32 = attention<float>,
      .attention_f16 = attention<f16>,
      .attention_u8 = attention<uint8_t>,
      .kv_append_f32 = kv_append<float>,
      .kv_append_f16 = kv_append<f16>,
      .kv_append_u8 = kv_append<uint8_t>,
      .rope = rope,
      .rms_norm = rms_norm,
      .layer_norm = layer_norm,
      .activate = activate,
      .glu = glu,
      .clamped_swiglu = clamped_swiglu,
      .scale_and_cap = scale_and_cap,
      .add = add,
      .softmax = softmax,
      .sum_words = sum_words,
      .fma_rounds = fma_rounds,
  };
}

}  // namespace
}  // namespace minfer::cpu
