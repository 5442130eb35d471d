#pragma once

#include <cuda_runtime.h>

#include <optional>
#include <span>

#include "kernels/backend.h"

// The launchers of kernels/cuda, which are all that the backend sees of the .cu files. Each checks
// shapes, dtypes and alignment (throws Internal), launches on `stream` and returns. The formulas
// stand at the kernels. "half" is the compute type of the backend: F16 or BF16.
namespace minfer::cuda {

// ---- elementwise/: rows and elements ------------------------------------------------------------
// The residual stream is F32, all else is half. The formulas are those of backend.h.

// x is F32 or half; out, weight and bias are half. bias may be null. weight [dim], or [k, dim]: row
// r has weights r % k.
void rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, float eps);
// x += add in F32, then out = rms_norm(x), in one pass
void add_rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor add, Tensor weight, float eps);
// The same with first + second added, the parts of two ranks.
void add_parts_rms_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor first, Tensor second,
                        Tensor weight, float eps);
// Backend::add_part in one pass, for a post norm and a next norm that are Rms or None and have no
// activation: x += scale * post_norm(part), then *next. Weights of [dim] alone.
void add_normed_part(cudaStream_t stream, Tensor x, Tensor part, const NormWeights& post_norm,
                     float scale, const NormArgs* next);
// Backend has the formulas; x half.
void sum_squares(cudaStream_t stream, Tensor sums, Tensor x);
void rms_norm_by_sums(cudaStream_t stream, Tensor x, Tensor sums, Tensor weight, float eps);
void layer_norm(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, Tensor bias, float eps);
void layer_norm_gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor weight, Tensor bias,
                     float eps, GeluKind kind);
// gelu(x + bias); bias may be null
void gelu(cudaStream_t stream, Tensor out, Tensor x, Tensor bias, GeluKind kind);
void silu(cudaStream_t stream, Tensor out, Tensor x);
void glu(cudaStream_t stream, Tensor out, Tensor gate, Tensor up, Activation activation,
         const SwiGluClamp& clamp = {});
void scale_and_cap(cudaStream_t stream, Tensor x, float scale, float softcap);  // F32, in place
void add(cudaStream_t stream, Tensor out, Tensor a, Tensor b);                  // F32 or half
void add_bias(cudaStream_t stream, Tensor out, Tensor x, Tensor bias);          // x F32 or half
void softmax(cudaStream_t stream, Tensor out, Tensor x);                        // F32 or half

void convert(cudaStream_t stream, Tensor out, Tensor x);  // any float type into another
// Writes to *found, in device memory, the index of the first element of x [...] F32 that is not
// finite, or the number of elements if all are finite.
void find_non_finite(cudaStream_t stream, int64_t* found, Tensor x);

// nll[i] = log(sum_j exp(logits[i, j])) - logits[i, targets[i]]; logits [n, vocab_size] F32, nll
// [n] F32, targets [n] in device memory
void negative_log_likelihoods(cudaStream_t stream, Tensor nll, Tensor logits,
                              const int32_t* targets);

// Where the rows of one sequence lie in the cache: at positions pos, pos + 1, ...
struct CachePlace {
  const int32_t* pages;  // device memory: the page table of the sequence (SequenceRows)
  int64_t n_pages;       // entries of the table
  int64_t pos;

  int64_t max_positions() const { return n_pages * kPagePositions; }
};

// ---- gemm/: GEMM, for linear layers of more than 8 tokens --------------------------------------

enum class Epilogue {
  Store,       // out = x wᵀ + bias, out half or F32
  Accumulate,  // out += x wᵀ + bias, out F32: the residual stream
  SwiGlu,    // out = silu(x gateᵀ + bias) * (x upᵀ + bias): takes exactly two parts of the same
             // shape, gate and up, and writes the out of the first
  GeGluErf,  // the same with gelu in the place of silu
  GeGluTanh,
  GeluErf,  // out = gelu(x wᵀ + bias), out half
  GeluTanh,
};

__host__ __device__ constexpr bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::SwiGlu || epilogue == Epilogue::GeGluErf ||
         epilogue == Epilogue::GeGluTanh;
}

// One weight matrix of a GEMM. w [out, in] half, row-major.
struct GemmPart {
  Tensor w;
  Tensor out;   // [n_tokens, out]
  Tensor bias;  // [out] half, or null
};

// Multiplies one input by all parts (1 to 3) in one launch. x [n_tokens, in] half.
void gemm(cudaStream_t stream, Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);

// Backend::qkv_append for many tokens in one launch, bit-identical to gemm, add_bias, rms_norm and
// rope_append one after the other. The parts are q, k and v, whose outs are [n_tokens, n_heads *
// head_dim]; the outs of k and v are not written. It takes F16 and an F16 cache with heads of
// kFusedHeadDim that rotate as a whole, without a norm or with one for each head. gemm_appends says
// whether gemm_append can do it and is expected to be faster than separate launches; it reads only
// the shapes of the weights, and is false unless pos is a multiple of 64.
constexpr int kFusedHeadDim = 128;
bool gemm_appends(Tensor x, std::span<const GemmPart, 3> qkv, const KvLayer& cache, int64_t pos,
                  Tensor cos_sin, QkNorm norm);
void gemm_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor x,
                 std::span<const GemmPart, 3> qkv, Tensor cos_sin, const QkNormArgs& norm);

// Rows of signed 8-bit codes (symmetric) with one scale per row: a value is code * scale.
struct CodeRows {
  Tensor codes;   // [n, in] U8, in two's complement
  Tensor scales;  // [n] F32
};
struct CodesPart {
  CodeRows w;   // of [out, in]
  Tensor out;   // [n_tokens, out] half or F32
  Tensor bias;  // [out] half, or null
};

// The same GEMM on codes, by the int8 tensor cores (W8A8). Its sums are exact integers, which are
// then rounded to F32 and multiplied by both scales. It takes all epilogues but GELU without a
// gate; `in` is a multiple of 16 and at most kMaxCodeColumns, so that no sum overflows.
// can_multiply_codes says whether this card and build support it.
constexpr int64_t kMaxCodeColumns = (int64_t{1} << 31) / (128 * 128) - 16;
bool can_multiply_codes();
void multiply_codes(cudaStream_t stream, const CodeRows& x, std::span<const CodesPart> parts,
                    Epilogue epilogue);

// ---- gemv/: GEMV, for linear layers of 1 to 8 tokens, bound by reading the weights ------------

constexpr int64_t kMaxGemvTokens = 8;

// The norm of the F32 residual stream that is fused in front of a GEMV.
struct GemvNorm {
  Tensor weight, bias;  // [in] half; the bias may be null
  float eps = 0;
  bool is_rms = true;  // else LayerNorm
};

// One weight matrix as it is stored. The int8 GEMM of many tokens takes its weights so, too.
struct GemvPart {
  const Matrix* w;  // floats row-major, or packed codes
  Tensor out;       // [n_tokens, out]
  Tensor bias;      // [out] half, or null
};

// x [n_tokens, in] is half, or F32 if `norm` is given; the normed row is rounded to half. With an
// RMSNorm of several rows, x times the norm's weights is rounded instead, and the norm's scale is
// applied to the sums, unless a value of any row is too large for F16 (stage_unscaled()).
//   behind_guest  the GEMV in front of it is expert_gemv(), whose blocks leave room on an SM: this
//                 one's then take so much that two never share one (Sharing in gemv.cu)
void gemv(cudaStream_t stream, Tensor x, const GemvNorm* norm, std::span<const GemvPart> parts,
          Epilogue epilogue, bool behind_guest = false);

// ---- quant/: packed codes ----------------------------------------------------------------------

// Allocates a matrix of packed U8 or U4 codes with F16 or F32 scales, without filling it. U4
// without minimums may have a table. The codes lie in tiles, in the order of gemv's mma fragments
// (quant/packed_layout.h); cuda_keeps_groups() says which groups are allowed.
Matrix allocate_codes(DType codes, DType scales, bool asymmetric, int64_t out_dim, int64_t in_dim,
                      int64_t group, CodeTable table = CodeTable::None);

// Fills rows [first_row, first_row + rows.out_dim()) of `packed` from `rows`, whose tensors are in
// device memory. first_row is a multiple of 16, and so is the number of rows unless they are the
// last ones.
void pack_codes(cudaStream_t stream, const Matrix& packed, const QuantizedMatrix& rows,
                int64_t first_row);

// The same of a format of products. Upper bits of its codes may lie apart: packed_layout.h.
Matrix allocate_products(int64_t out_dim, int64_t in_dim, const GroupFormat& format);
// Fills all codes of such a matrix with their lower bits; the records have the others. codes [out,
// in] U4 or U8 in device memory.
void pack_product_codes(cudaStream_t stream, const Matrix& packed, const Tensor& codes);

// Scales that are products (GroupFormat), and mins, of host [out, in], a Q type, as a card stores
// them: the records of a packed matrix (quant/packed_layout.h).
std::vector<uint8_t> packed_records(const Tensor& host);

constexpr size_t kMaxDequantizeParts = 3;

struct DequantizePart {
  const Matrix* w;  // of any type
  Tensor out;       // [n, in] half, row-major: rows [begin, begin + n) of w
  int64_t begin = 0;
};

// Dequantizes 1 to 3 parts, whose outs have one dtype: all U4 parts in one launch, all U8 parts in
// another.
void dequantize_rows(cudaStream_t stream, std::span<const DequantizePart> parts);

// Quantizes activations x [n, in] half per token for multiply_codes(): a row's scale is its largest
// magnitude over 127. If a row is not finite, neither are its scale and its results.
void quantize_rows(cudaStream_t stream, const CodeRows& to, Tensor x);

// Turns the packed codes w into CodeRows. They keep their values if w has 8 bits, one scale per row
// and no minimums; else they are requantized, with code 127 for the largest magnitude that a row's
// scales and minimums allow. fits_code_rows says whether w can be turned: in_dim is then a multiple
// of 16 and at most kMaxCodeColumns.
struct UnpackPart {
  const Matrix* w;
  CodeRows to;
};
bool fits_code_rows(const Matrix& w);
void unpack_codes(cudaStream_t stream, std::span<const UnpackPart> parts);  // 1 to 3

// out[i] = row ids[i] of the table, which has any type. out [n, in] F32, ids [n] in device memory.
void gather_rows(cudaStream_t stream, Tensor out, const Matrix& table, const int32_t* ids);

// ---- attention/ --------------------------------------------------------------------------------

// A KvLayer here has keys and values [n_pages, n_kv_heads, kPagePositions, head_dim], F16, or U8
// with scales [n_pages, n_kv_heads, kPagePositions] F32: (code - 128) * scale.

// Rotates pairs (i, i + rotary_dim / 2) of each head by the angle of its position, as
// Backend::rope. x [n_tokens, n_heads, head_dim] half. out has the same shape and either the dtype
// of x, in which case it may be x itself, or F16. cos_sin [max_seq_len, rotary_dim / 2, 2] F32, or
// null: then x is only converted.
void rope(cudaStream_t stream, Tensor out, Tensor x, Tensor cos_sin, int64_t pos);

// Backend::kv_append: k, v [n_tokens, n_kv_heads, head_dim], both F16 or BF16.
void kv_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor k, Tensor v);

// Backend::rope_append: q, k, v of one type, F16 or BF16. It is one launch if the cache is F16 and
// heads and angles are whole 16-byte words.
void rope_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor q, Tensor k,
                 Tensor v, Tensor cos_sin);

// Attention of many queries of one sequence. q [n_tokens, n_heads, head_dim] F16 or BF16 (which is
// rounded to F16), already rotated. The cache holds the keys of positions 0 ... pos + n_tokens - 1,
// or at least of those that a query sees within its `window`. out [n_tokens, n_heads, head_dim] F16
// or BF16. head_dim up to 256; scale > 0. softcap and sinks: as AttentionArgs has them.
//
// For a U8 cache, pass a `workspace` of attention_prefill_workspace() bytes, 256-byte aligned, for
// the n_pages pages that queries see at most. Up to kMaxGemvTokens queries then split the
// positions over blocks, as decode does; for more queries, the cache is dequantized to F16 for the
// kernel of F16 caches, if the card has it. Without a workspace, the plain kernel reads the codes
// as they are. For an F16 cache, no workspace is needed (0 bytes).
int64_t attention_prefill_workspace(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                    int64_t n_pages);
void attention_prefill(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                       const CachePlace& place, float scale, int64_t window = 0,
                       void* workspace = nullptr, float softcap = 0, Tensor sinks = {});

// Attention of n rows, up to kMaxGemvTokens: one query of each of n sequences, or several of each
// at consecutive positions. Row i is at position pos[i] (in device memory, so that a captured graph
// serves for every step), and sees the rows of its sequence in front of it. It rotates q and k,
// appends k and v to the cache, splits the cache over blocks and merges their partial results in
// fixed order, all in one launch. head_dim up to 256; scale > 0.
//
// The kernel reads pos, the page tables, the rope table and the cache before a sequence's first row
// BEFORE it waits for its predecessor (PDL), so that these reads overlap the predecessor's reads of
// weights. The predecessor may itself have begun before the kernel in front of it ended, and so on,
// back to the last operation that was not launched by launch() (a copy, an event, the start of a
// graph). All these data must be written before such an operation. A decode step therefore is a
// graph of its own: its position is written before the graph starts (by a copy, or by the previous
// step), and of its kernels only this one writes a cache, at pos[i].
struct AttentionDecode {
  Tensor out;      // [n, n_heads, head_dim] half
  Tensor q, k, v;  // q as out; k, v [n, n_kv_heads, head_dim]; as the projections left them
  Tensor rope;     // [max_seq_len, rotary_dim / 2, 2] F32, or null
  KvLayer* cache;
  // Device memory: tables [n / rows_of_sequence, pages_for(max_seq_len)], valid up to the last row.
  const int32_t* pages;
  const int* pos;                // [n]
  int64_t rows_of_sequence = 1;  // a divisor of n
  int64_t max_seq_len;           // each pos[i] is below it
  float scale;
  int64_t window = 0;  // positions that a query sees, its own included; 0: all
  float softcap = 0;   // as AttentionArgs has it
  Tensor sinks = {};   // the same
  // [head_dim] half: of RMSNorms of each head of q and k, in front of the rotation; or null.
  Tensor q_norm = {}, k_norm = {};
  float norm_eps = 0;
  void* workspace;  // attention_decode_workspace(...) bytes, zeroed once; each launch leaves it so
};
// Bytes of workspace for up to n rows, of one sequence or of as many.
int64_t attention_decode_workspace(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                                   int64_t max_seq_len);
void attention_decode(cudaStream_t stream, const AttentionDecode& a);

}  // namespace minfer::cuda
