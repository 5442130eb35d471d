#pragma once

#include <cuda_runtime.h>

#include <optional>
#include <span>

#include "kernels/backend.h"

// Every launcher of kernels/cuda: all that the backend sees of the .cu files. Each checks shapes,
// dtypes and alignment (Internal), launches on `stream` and returns; formulas stand at the kernels.
// T is the compute type of the backend, F16 or BF16; "half" below means T.
namespace minfer::cuda {

// ---- elementwise/: rows and elements ------------------------------------------------------------
// The residual stream is F32, all else half; formulas as in backend.h.

// x F32 or half, out, weight and bias half. bias may be null.
void rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, float eps);
// x += add, F32, then its norm: a residual and the norm behind it in one pass
void add_rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor add, Tensor weight, float eps);
void layer_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, Tensor bias, float eps);
void layer_norm_gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, Tensor bias,
                     float eps, GeluKind kind);
// gelu(x + bias); bias may be null
void gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, GeluKind kind);
void silu(cudaStream_t stream, Tensor out, Tensor x);
void swiglu(cudaStream_t stream, Tensor out, Tensor gate, Tensor up);
void add(cudaStream_t stream, Tensor out, Tensor a, Tensor b);          // F32 or half
void add_bias(cudaStream_t stream, Tensor out, Tensor x, Tensor bias);  // x F32 or half
void softmax(cudaStream_t stream, Tensor out, Tensor x);                // F32 or half

void convert(cudaStream_t stream, Tensor out, Tensor x);  // any float type into another
// *found, on the card: index of the first element of x [...] F32 that is not finite, or their
// number
void find_non_finite(cudaStream_t stream, int64_t* found, Tensor x);

// nll[i] = log(sum_j exp(logits[i, j])) - logits[i, targets[i]]; logits [n, vocab_size] F32, nll
// [n] F32, targets [n] in device memory
void negative_log_likelihoods(cudaStream_t stream, Tensor nll, Tensor logits,
                              const int32_t* targets);

// Where the cache has the rows of one sequence: at positions pos, pos + 1, ...
struct CachePlace {
  const int32_t* pages;  // device memory: the table of the sequence (SequenceRows)
  int64_t n_pages;       // entries of it
  int64_t pos;

  int64_t max_positions() const { return n_pages * kPagePositions; }
};

// ---- gemm/: products of more than 8 tokens -----------------------------------------------------

enum class Epilogue {
  Store,       // out = x wᵀ + bias, out half or F32
  Accumulate,  // out += x wᵀ + bias, out F32: the residual stream
  SwiGlu,   // out = silu(x gateᵀ + bias) * (x upᵀ + bias): exactly two parts of the same shape,
            // gate and up; the out of the first is written
  GeluErf,  // out = gelu(x wᵀ + bias), out half
  GeluTanh,
};

// One matrix of a product. w [out, in] half, row-major, rows in_stride elements apart.
struct GemmPart {
  Tensor w;
  Tensor out;   // [n_tokens, out]
  Tensor bias;  // [out] half, or null
};

// All parts (1 to 3) of one input in one launch. x [n_tokens, in] half.
void gemm(cudaStream_t stream, Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);

// Backend::append_products of many tokens in one launch, to the bits of gemm, add_bias and
// rope_append one after the other: parts q, k and v, whose outs are [n_tokens, n_heads * head_dim];
// those of k and v stay as they are. For F16 and an F16 cache with heads of kFusedHeadDim that
// rotate as a whole. gemm_appends says whether it can and is expected to be the faster way; of the
// weights it reads the shapes alone; pos is a multiple of 64 then.
constexpr int kFusedHeadDim = 128;
bool gemm_appends(Tensor x, std::span<const GemmPart, 3> qkv, const KvLayer& cache, int64_t pos,
                  Tensor cos_sin);
void gemm_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor x,
                 std::span<const GemmPart, 3> qkv, Tensor cos_sin);

// Rows of codes of 8 bits with a sign, one scale each: a row is code * scale.
struct CodeRows {
  Tensor codes;   // [n, in] U8, in two's complement
  Tensor scales;  // [n] F32
};
struct CodesPart {
  CodeRows w;   // of [out, in]
  Tensor out;   // [n_tokens, out] half or F32
  Tensor bias;  // [out] half, or null
};

// The same of codes, by the integer tensor cores: sums of products of codes are exact, and are
// rounded to F32 and multiplied by both scales. Store, Accumulate and SwiGlu; `in` a multiple of 16
// and so small that no sum overflows. can_multiply_codes says whether this card and build have
// them.
constexpr int64_t kMaxCodeColumns = (int64_t{1} << 31) / (128 * 128) - 16;
bool can_multiply_codes();
void multiply_codes(cudaStream_t stream, const CodeRows& x, std::span<const CodesPart> parts,
                    Epilogue epilogue);

// ---- matvec/: products of 1 to 8 tokens, at the bandwidth of the weights ------------------------

constexpr int64_t kMaxMatvecTokens = 8;

// What stands before the product: a norm of the F32 residual stream, fused.
struct MatvecNorm {
  Tensor weight, bias;  // [in] half; the bias may be null
  float eps = 0;
  bool is_rms = true;  // else LayerNorm
};

// One matrix of a product as it is packed, also where codes of many tokens are multiplied.
struct MatvecPart {
  const Matrix* w;  // floats row-major, or packed codes
  Tensor out;       // [n_tokens, out]
  Tensor bias;      // [out] half, or null
};

// x [n_tokens, in]: half, or F32 where `norm` is given; the normed row is rounded to half.
void matvec(cudaStream_t stream, Tensor x, const MatvecNorm* norm,
            std::span<const MatvecPart> parts, Epilogue epilogue);

// ---- quant/: packed codes ----------------------------------------------------------------------

// Room for packed codes U8 or U4 with scales F16 or F32; not filled. They lie in tiles in the
// order of matvec's fragments (quant/packed_layout.h), in groups that cuda_keeps_groups() allows.
Matrix allocate_codes(DType codes, DType scales, bool asymmetric, int64_t out_dim, int64_t in_dim,
                      int64_t group);

// Fills rows [first_row, first_row + rows.out_dim()) of it from `rows`, whose tensors are device
// memory. first_row is a multiple of 16, and so is the number of rows, or they are the last ones.
void pack_codes(cudaStream_t stream, const Matrix& packed, const QuantizedMatrix& rows,
                int64_t first_row);

constexpr size_t kMaxDequantizeParts = 3;

struct DequantizePart {
  const Matrix* w;  // of any type
  Tensor out;       // [n, in] half, row-major: rows [begin, begin + n) of w
  int64_t begin = 0;
};

// All parts (1 to 3), their outs of one type: those of codes U4 in one launch, those of U8 in one.
void dequantize_rows(cudaStream_t stream, std::span<const DequantizePart> parts);

// For multiply_codes(). x [n, in] half: a row's scale is its largest magnitude over 127. Where
// that is not finite, neither is the scale, nor what is made of it.
void quantize_rows(cudaStream_t stream, const CodeRows& to, Tensor x);

// Rows of codes of all rows of w, packed codes: as they are where w has 8 bits, one scale a row
// and no minimums, else rounded again, to 127 for the largest magnitude that a row's scales and
// minimums allow. fits_code_rows says whether w can be made such: its rows are whole 16 bytes then
// and at most kMaxCodeColumns.
struct UnpackPart {
  const Matrix* w;
  CodeRows to;
};
bool fits_code_rows(const Matrix& w);
void unpack_codes(cudaStream_t stream, std::span<const UnpackPart> parts);  // 1 to 3

// out[i] = row ids[i] of the table, of any type: out [n, in] F32, ids [n] in device memory.
void gather_rows(cudaStream_t stream, Tensor out, const Matrix& table, const int32_t* ids);

// ---- attention/ --------------------------------------------------------------------------------

// A KvLayer here: keys and values [n_pages, n_kv_heads, kPagePositions, head_dim], F16, or U8 with
// scales [n_pages, n_kv_heads, kPagePositions] F32: (code - 128) * scale.

// Turns pairs (i, i + rotary_dim / 2) of each head by the angle of its position, as Backend::rope.
// x [n_tokens, n_heads, head_dim] half; out the same shape in the same dtype, then x itself if so
// wished, or F16. cos_sin [max_seq_len, rotary_dim / 2, 2] F32, or null: x is converted only.
void rope(cudaStream_t stream, Tensor out, Tensor x, Tensor cos_sin, int64_t pos);

// Backend::kv_append: k, v [n_tokens, n_kv_heads, head_dim], both F16 or BF16.
void kv_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor k, Tensor v);

// Backend::rope_append: q, k, v of one type, F16 or BF16. One launch where the cache is F16 and
// heads and angles are whole 16 bytes.
void rope_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor q, Tensor k,
                 Tensor v, Tensor cos_sin);

// Many queries. q [n_tokens, n_heads, head_dim] F16 or BF16 (which is rounded to F16), already
// rotated; keys of positions 0 ... pos + n_tokens - 1, or of those that a query sees within its
// `window`, are in the cache; out [n_tokens, n_heads, head_dim] F16 or BF16. head_dim up to 256;
// scale > 0.
//
// A U8 cache wants a `workspace` of attention_prefill_workspace() bytes, 256-byte aligned, where
// queries see up to n_pages: up to kMaxMatvecTokens queries split its positions over blocks, as
// decode does; more of them read it as F16, by the kernel of F16 caches, where the card has that.
// Without a workspace its codes are read as they are, by the plain kernel. 0 bytes: there is only
// the one way.
int64_t attention_prefill_workspace(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                    int64_t n_pages);
void attention_prefill(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                       const CachePlace& place, float scale, int64_t window = 0,
                       void* workspace = nullptr);

// One query of each of n sequences, up to kMaxMatvecTokens, at position pos[i] (device memory, so
// that a captured graph serves for every step): the cache is split over blocks, partial results are
// merged in fixed order in the same launch. Rotates q and k, appends k and v to the cache. head_dim
// up to 256; scale > 0.
//
// pos, the tables of pages, the rope table and the cache before pos[i] are read AHEAD of the wait
// for the kernel in front in the stream, behind whose reads of weights they hide. That kernel may
// itself have begun before the one in front of it ended, and so on, back to the last operation that
// was not launched by launch() (a copy, an event, the start of a graph). So all that must have been
// written before such an operation: a decode step is a graph of its own, in front of which its
// position is written (by a copy, or by the step before), and of its kernels only this one writes a
// cache, at pos[i].
struct AttentionDecode {
  Tensor out;      // [n, n_heads, head_dim] half
  Tensor q, k, v;  // the same, [n, n_kv_heads, head_dim], as the product left them
  Tensor rope;     // [max_seq_len, rotary_dim / 2, 2] F32, or null
  KvLayer* cache;
  const int32_t* pages;  // device memory: tables [n, pages_for(max_seq_len)], which reach to pos[i]
  const int* pos;        // [n]
  int64_t max_seq_len;   // each pos[i] is below it
  float scale;
  int64_t window = 0;  // positions that a query sees, its own included; 0: all
  void* workspace;     // attention_decode_workspace(...) bytes, zeroed once; left zeroed
};
// For up to n sequences.
int64_t attention_decode_workspace(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                                   int64_t max_seq_len);
void attention_decode(cudaStream_t stream, const AttentionDecode& a);

}  // namespace minfer::cuda
