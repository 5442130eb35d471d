#pragma once

#include <cstdint>

#include "kernels/cpu/quantized_layout.h"

namespace minfer::cpu {

// CpuKernels holds pointers to the kernels of one instruction set. An object file built with AVX
// flags shares no inline function with the others, because the linker keeps only one copy of such a
// function, and that copy could hold AVX code that other CPUs cannot run. The kernels check nothing
// and throw nothing; CpuBackend checks the arguments and splits the work into pieces.

enum class Activation { None, GeluErf, GeluTanh, Silu };

// One piece of out = x w^T: tokens [token_begin, token_end) times panels [panel_begin, panel_end).
struct MatmulPiece {
  float* out;      // [n_tokens, out_dim]
  const float* x;  // [n_tokens, in_dim]
  const void* w;   // panels of [out_dim, in_dim]
  int64_t in_dim, out_dim;
  int64_t token_begin, token_end;  // at most kMaxMatmulTokens
  int64_t panel_begin, panel_end;  // at most kMaxMatmulPanels
  bool accumulate;                 // out += x w^T
  float* scratch;                  // kMatmulScratch floats that only this thread uses
};
// The f32 input of a linear layer with quantized weights. Its rows are padded with zeros to
// padded_cols(in_dim) columns.
struct FloatInput {
  const float* x;
  int64_t stride;
  const float* sums;  // [n_tokens][n_steps], sum of x over each step; read if w has mins
};
constexpr int64_t kMaxMatmulTokens = 256;
constexpr int64_t kMaxMatmulPanels = 32;
// From this many tokens on, a kernel may convert weights to f32 before it multiplies.
constexpr int64_t kManyTokens = 16;
// The most panels that a kernel multiplies at once. Pieces begin at multiples of it.
constexpr int64_t kMaxTilePanels = 4;
constexpr int64_t kMatmulScratch = 1 << 18;

// The KV cache of one layer, as one sequence reads it. Keys and values are [n_pages, n_kv_heads]
// matrices in panels: a key matrix is [kPositionBlock, head_dim], a value matrix [head_dim,
// kPositionBlock]. A U8 cache has a scale for each position of each matrix, [n_pages, n_kv_heads,
// kPositionBlock]; for other types the scales are null.
struct CachePages {
  void *keys, *values;
  float *key_scales, *value_scales;
  const int32_t* pages;  // the sequence's page table: SequenceRows
  int64_t n_kv_heads, head_dim;
};

// Returns the index of the matrix that holds `position` of `head`. keys_of and values_of return the
// first element of a matrix.
static inline int64_t matrix_of(const CachePages& cache, int64_t position, int64_t head) {
  return cache.pages[position / kPositionBlock] * cache.n_kv_heads + head;
}
template <typename T>
static inline T* keys_of(const CachePages& cache, int64_t matrix) {
  return static_cast<T*>(cache.keys) + matrix * panel_elements(kPositionBlock, cache.head_dim);
}
template <typename T>
static inline T* values_of(const CachePages& cache, int64_t matrix) {
  return static_cast<T*>(cache.values) + matrix * panel_elements(cache.head_dim, kPositionBlock);
}

// Causal attention of query rows [row_begin, row_end), which all read one key/value head. Row r is
// token r / n_group and query head r % n_group of that key/value head's group.
struct AttentionPiece {
  float* out;      // [n_tokens, n_heads, head_dim]; points to the group's first head
  const float* q;  // laid out as out
  CachePages cache;
  int64_t kv_head;
  int64_t n_heads, n_group, head_dim;
  int64_t row_begin, row_end;
  int64_t pos;     // position of token 0
  int64_t window;  // positions that a query sees, its own included; 0: all
  float scale;
  float softcap;       // of the scaled scores; 0: none
  const float* sinks;  // [n_group], or null: AttentionArgs
  float* scratch;      // attention_scratch(row_end - row_begin, head_dim) floats, this thread's own
};
// Returns the floats that attention needs for the query, scores and sums of each row and for its
// maximum, total and correction.
static constexpr int64_t attention_scratch(int64_t n_rows, int64_t head_dim) {
  return n_rows * ((n_blocks(head_dim) + 1) * kKBlock + n_panels(head_dim) * kPanel + 3);
}

// The code of a U8 cache that means 0: a value is (code - kKvZeroCode) * scale.
constexpr int kKvZeroCode = 128;

struct KvAppend {
  CachePages cache;
  const float *k, *v;  // [n_tokens, n_kv_heads, head_dim]
  int64_t pos;         // position of token 0
};

// The matmuls of quantized weights with inputs quantized to int8, one for each InputForm.
struct ByteMatmuls {
  using Matmul = void (*)(const MatmulPiece&, const PackedCodes&, const InputBlock*);
  // x [n_rows, cols]; out [n_rows, n_input_blocks(cols), n_planes(format.form)]
  using Quantize = void (*)(InputBlock* out, const float* x, int64_t n_rows, int64_t cols,
                            const InputFormat& format);
  Matmul symmetric, asymmetric;
  Quantize quantize;  // to the symmetric or the asymmetric form
  // Both are null if the instruction set multiplies f32 inputs faster than planes.
  Matmul planes = nullptr;
  Quantize quantize_planes = nullptr;
};

struct CpuKernels {
  using Matmul = void (*)(const MatmulPiece&);
  // PackedCodes and FloatInput take the place of the piece's w and x.
  using MatmulCodes = void (*)(const MatmulPiece&, const PackedCodes&, const FloatInput&);
  using Attention = void (*)(const AttentionPiece&);
  using Append = void (*)(const KvAppend&, int64_t token_begin, int64_t token_end);

  const char* name;
  Matmul matmul_f32, matmul_f16, matmul_bf16;
  MatmulCodes matmul_codes;
  ByteMatmuls bytes;
  Attention attention_f32, attention_f16, attention_u8;
  Append kv_append_f32, kv_append_f16, kv_append_u8;

  // x [n_tokens, n_heads, head_dim] in place; cos_sin [n_tokens, rotary_dim / 2, 2]
  void (*rope)(float* x, const float* cos_sin, int64_t n_tokens, int64_t n_heads, int64_t head_dim,
               int64_t rotary_dim);
  void (*rms_norm)(float* out, const float* x, const float* weight, int64_t n_rows, int64_t dim,
                   float eps);
  // out = activation(layer_norm(x)); bias may be null
  void (*layer_norm)(float* out, const float* x, const float* weight, const float* bias,
                     int64_t n_rows, int64_t dim, float eps, Activation activation);
  // out = activation(x + bias); bias [dim] may be null
  void (*activate)(float* out, const float* x, const float* bias, int64_t n_rows, int64_t dim,
                   Activation activation);
  void (*glu)(float* out, const float* gate, const float* up, int64_t n, Activation activation);
  // Activation::ClampedSwiGlu of Backend::glu
  void (*clamped_swiglu)(float* out, const float* gate, const float* up, int64_t n, float alpha,
                         float limit);
  void (*scale_and_cap)(float* x, int64_t n, float scale, float softcap);  // as Backend has it
  void (*add)(float* out, const float* a, const float* b, int64_t n);
  void (*softmax)(float* out, const float* x, int64_t n_rows, int64_t n);

  // For kernels/bench.h: sum_words returns the sum of n words, n a multiple of 128; fma_rounds runs
  // multiply-adds on registers and returns how many flops it did.
  uint32_t (*sum_words)(const uint32_t* data, int64_t n);
  double (*fma_rounds)(float* result, int64_t n_rounds);
};

const CpuKernels& reference_kernels();
#if defined(__x86_64__)
const CpuKernels& avx2_kernels();
CpuKernels avx512_kernels(const ByteMatmuls& bytes);
ByteMatmuls avx512_vnni_matmuls();
#endif

}  // namespace minfer::cpu
