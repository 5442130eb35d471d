#pragma once

#include <cstdint>

#include "kernels/cpu/quantized_layout.h"

namespace minfer::cpu {

// The kernels of one instruction set, behind pointers: an object file built with AVX flags shares
// no inline function with the others, so that the linker cannot put AVX code where it may not run.
// The kernels check nothing and throw nothing; cpu_backend.cpp does the checks and the split.

enum class Activation { None, GeluErf, GeluTanh, Silu };

// Rows [token_begin, token_end) and panels [panel_begin, panel_end) of out = x w^T.
struct MatmulPiece {
  float* out;      // [n_tokens, out_dim]
  const float* x;  // [n_tokens, in_dim]
  const void* w;   // panels of [out_dim, in_dim]
  int64_t in_dim, out_dim;
  int64_t token_begin, token_end;  // at most kMaxMatmulTokens
  int64_t panel_begin, panel_end;  // at most kMaxMatmulPanels
  bool accumulate;                 // out += x w^T
  float* scratch;                  // kMatmulScratch floats of this thread
};
// Input of a product with quantized weights, in rows of padded_cols(in_dim) that end in zeros.
struct FloatInput {
  const float* x;
  int64_t stride;
  const float* sums;  // [n_tokens][n_steps], of each step's columns; read where there are mins
};
constexpr int64_t kMaxMatmulTokens = 256;
constexpr int64_t kMaxMatmulPanels = 32;
// From this many tokens on, a kernel may unpack weights before it multiplies.
constexpr int64_t kManyTokens = 16;
// Panels that a kernel takes together: pieces are multiples of it.
constexpr int64_t kMaxTilePanels = 4;
constexpr int64_t kMatmulScratch = 1 << 18;

// The pages of a cache: [n_pages, n_kv_heads] matrices of keys, panels of [kPositionBlock,
// head_dim], and of values, panels of [head_dim, kPositionBlock]. Of U8 also scales,
// [kPositionBlock] for each matrix; else null.
struct CachePages {
  void *keys, *values;
  float *key_scales, *value_scales;
  const int32_t* pages;  // of the sequence: SequenceRows
  int64_t n_kv_heads, head_dim;
};

// Which matrix of the pool has a position of a head; then where it begins.
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

// Causal attention of query rows r = (t, i), i < n_group fastest, in [row_begin, row_end); all of
// them read one key/value head.
struct AttentionPiece {
  float* out;      // [n_tokens, n_heads, head_dim], at the group's first head
  const float* q;  // as out
  CachePages cache;
  int64_t kv_head;
  int64_t n_heads, n_group, head_dim;
  int64_t row_begin, row_end;
  int64_t pos;     // of token 0
  int64_t window;  // positions that a query sees, its own included; 0: all
  float scale;
  float* scratch;  // attention_scratch(row_end - row_begin, head_dim) floats of this thread
};
// Queries, scores and sums of each row, with its maximum, total and correction.
static constexpr int64_t attention_scratch(int64_t n_rows, int64_t head_dim) {
  return n_rows * ((n_blocks(head_dim) + 1) * kKBlock + n_panels(head_dim) * kPanel + 3);
}

// Codes of a quantized cache: this, one a byte, means 0.
constexpr int kKvZeroCode = 128;

struct KvAppend {
  CachePages cache;
  const float *k, *v;  // [n_tokens, n_kv_heads, head_dim]
  int64_t pos;         // of token 0
};

// Products with quantized weights of inputs in bytes, by the input's form.
struct ByteProducts {
  using Matmul = void (*)(const MatmulPiece&, const PackedCodes&, const InputBlock*);
  // x [n_rows, cols]; out [n_rows, n_input_blocks(cols), n_planes(format.form)]
  using Quantize = void (*)(InputBlock* out, const float* x, int64_t n_rows, int64_t cols,
                            const InputFormat& format);
  Matmul symmetric, asymmetric;
  Quantize quantize;  // to these two
  // Null where products of f32 are faster.
  Matmul planes = nullptr;
  Quantize quantize_planes = nullptr;
};

struct CpuKernels {
  using Matmul = void (*)(const MatmulPiece&);
  // The piece's x and w are in other forms here.
  using MatmulCodes = void (*)(const MatmulPiece&, const PackedCodes&, const FloatInput&);
  using Attention = void (*)(const AttentionPiece&);
  using Append = void (*)(const KvAppend&, int64_t token_begin, int64_t token_end);

  const char* name;
  Matmul matmul_f32, matmul_f16, matmul_bf16;
  MatmulCodes matmul_codes;
  ByteProducts bytes;
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
  void (*swiglu)(float* out, const float* gate, const float* up, int64_t n);
  void (*add)(float* out, const float* a, const float* b, int64_t n);
  void (*softmax)(float* out, const float* x, int64_t n_rows, int64_t n);

  // For kernels/bench.h: the sum of n words, n a multiple of 128; multiply-adds on registers,
  // returning how many flops that were.
  uint32_t (*sum_words)(const uint32_t* data, int64_t n);
  double (*fma_rounds)(float* result, int64_t n_rounds);
};

const CpuKernels& reference_kernels();
#if defined(__x86_64__)
const CpuKernels& avx2_kernels();
CpuKernels avx512_kernels(const ByteProducts& bytes);
ByteProducts avx512_vnni_products();
#endif

}  // namespace minfer::cpu
