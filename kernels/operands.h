#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kernels/base/error.h"
#include "kernels/base/math.h"
#include "kernels/base/quant_codec.h"
#include "kernels/base/tensor.h"

// What the operations of a backend take: weights, caches, rows of a batch, and their arguments.
namespace minfer {

// A tensor in a backend's memory, freed with this object. The backend must outlive it.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(const Tensor& view, std::function<void(void*)> free)
      : memory_(view.data, std::move(free)), view_(view) {}

  const Tensor& view() const { return view_; }
  operator Tensor() const { return view_; }
  explicit operator bool() const { return bool(view_); }

 private:
  std::unique_ptr<void, std::function<void(void*)>> memory_;
  Tensor view_;
};

// A weight matrix [out, in] in a layout of the backend's own. Backend::pack_matrix makes it for
// matmul and embed of the same backend, pack_table for embed only. Rows are the `out` features.
struct Matrix {
  DeviceTensor storage;
  // Of quantized weights. mins: null if the format has none, or if the blocks of a Q type hold
  // them. Those of a card's records are a view into scales, which must outlive it.
  DeviceTensor scales, mins;
  int64_t out_dim = 0, in_dim = 0;
  int64_t group = 0;  // columns that share a scale; 0: not quantized
  // Of the stored elements: a float type, U8, U4, or the Q type whose codes and scales they are.
  DType dtype = DType::F32;
  CodeTable table = CodeTable::None;  // of codes of four bits
  int code_bits =
      0;  // on a card: those of a code, 2 to 6 or 8; products are of dtype U4 all the same
  bool by_rows = false;  // pack_table's layout: rows of codes are contiguous
  int64_t n_bytes = 0;   // that one GEMV reads

  explicit operator bool() const { return bool(storage); }
};

// By which function of a backend a matrix is packed: pack_matrix or pack_table.
enum class MatrixUse { Matmul, Table };
// The shape and the format of a weight matrix before it is packed.
struct StoredMatrix {
  int64_t out_dim = 0, in_dim = 0;
  DType dtype = DType::F32;                // of floats
  std::optional<GroupFormat> groups = {};  // of quantized elements
  MatrixUse use = MatrixUse::Matmul;
};

// A linear layer, x weightᵀ + bias: its matrix, and a vector [out] or null.
struct Linear {
  Matrix weight;
  DeviceTensor bias;
};

// The number of positions in a page of the KV cache. Those of one head are adjacent.
constexpr int64_t kPagePositions = 128;

inline int64_t pages_for(int64_t n_positions) { return ceil_div(n_positions, kPagePositions); }

// Keys and values of one layer: a pool of pages, in a layout of the backend's own. The caller
// decides which sequences use a page: SequenceRows.
struct KvLayer {
  DeviceTensor keys, values;
  DeviceTensor key_scales, value_scales;  // U8: one for each head and position, F32
  int64_t n_kv_heads = 0, head_dim = 0, n_pages = 0;
  DType dtype = DType::F16;  // F16, F32, or U8: (code - 128) * scale, the largest at +-127
};

// Rows of a pass that follow one another in one sequence.
struct SequenceRows {
  int64_t n_rows = 0;
  int64_t pos = 0;  // of the first one
  // The sequence's pages in the order of its positions: position p is in page
  // pages[p / kPagePositions] of every layer. An entry may be -1 if all its positions lie outside
  // every attention window.
  std::span<const int32_t> pages = {};

  int64_t end() const { return pos + n_rows; }
};

// The rows of a pass, one sequence after another.
using Batch = std::span<const SequenceRows>;

inline int64_t n_rows_of(Batch batch) {
  int64_t n = 0;
  for (const SequenceRows& rows : batch) n += rows.n_rows;
  return n;
}

enum class GeluKind { Erf, Tanh };
enum class NormKind { Rms, Layer, None };  // None: out = x
// RMSNorm of each head with the same weights, or of all heads of a row as one vector; LayerNorm
// without biases of each head, with weights of its own.
enum class QkNorm { None, PerHead, WholeWidth, LayerOfEachHead };
enum class Activation { Silu, GeluErf, GeluTanh, ClampedSwiGlu };
// The parameters of ClampedSwiGlu, which only a network with a gate has. limit 0: plain SwiGLU.
struct SwiGluClamp {
  float alpha = 1, limit = 0;
};
// Throws Internal if it is not a GELU.
inline GeluKind gelu_kind(Activation activation) {
  MINFER_CHECK(activation == Activation::GeluErf || activation == Activation::GeluTanh,
               "activation ", int(activation), " as a kind of GELU");
  return activation == Activation::GeluErf ? GeluKind::Erf : GeluKind::Tanh;
}

// One matmul of an input x [n_tokens, in]: out = x w^T with w [out, in], out [n_tokens, out]. With
// `accumulate`, out += x w^T (the residual stream: only the sum is rounded).
struct Matmul {
  Tensor out;
  const Matrix& w;
  bool accumulate = false;
};

// Arguments of the operations below, which have the formulas. The default value of a field is
// neutral: the operation without that field. A backend that does not handle a field throws if it is
// not neutral, so that nothing is left out silently.

struct NormArgs {
  Tensor out, x;  // [n_rows, n]; in place
  // weight [n], or [k, n]: row r has weights r % k. bias [n]; it may be null, and must be with Rms
  // and with [k, n]. Both are null with None.
  Tensor weight, bias;
  NormKind kind = NormKind::Rms;
  float eps = 0;
  std::optional<Activation> activation = {};  // applied to the result, without rounding in between
};

// The norm of queries and keys, before the rotation.
struct QkNormArgs {
  QkNorm kind = QkNorm::None;
  // PerHead: [head_dim], else [n_heads * head_dim] and [n_kv_heads * head_dim]
  Tensor q_weight, k_weight;
  float eps = 0;
};

// Queries, keys and values of one input.
struct QkvArgs {
  Tensor x;        // [n_tokens, in]
  Tensor q, k, v;  // [n_tokens, n_heads, head_dim]; k and v have n_kv_heads
  const Linear &wq, &wk, &wv;
  QkNormArgs norm = {};
};

struct AttentionArgs {
  Tensor out, q;  // [n_tokens, n_heads, head_dim]
  const KvLayer& cache;
  Batch batch;         // whose rows they are
  float scale = 0;     // of the scores, usually 1 / sqrt(head_dim)
  int64_t window = 0;  // positions that a query sees, its own included; 0: all
  float softcap = 0;   // c: a score, already scaled, becomes c tanh(score / c); 0: none
  // [n_heads] F32: one more score for each head, neither scaled nor capped, whose value is 0;
  // null: none
  Tensor sinks = {};
};

// The hidden layer of a feed-forward network.
struct FfnArgs {
  Tensor out;                    // [n_tokens, ffn_dim]
  Tensor x;                      // [n_tokens, in]
  const Linear* gate = nullptr;  // null: there is none
  const Linear& up;
  Activation activation = Activation::Silu;
};

// A norm without its operands: NormArgs has the fields.
struct NormWeights {
  Tensor weight = {}, bias = {};
  NormKind kind = NormKind::None;
  float eps = 0;
};

// The end of half a block: x += scale * post_norm(linear(input)), then *next.
struct ResidualArgs {
  Tensor x;      // [n_tokens, out] F32, the residual stream
  Tensor input;  // [n_tokens, in]
  const Linear& linear;
  NormWeights post_norm = {};
  float scale = 1;
  const NormArgs* next = nullptr;  // a norm of the new x; null: there is none

  // Whether it is x += linear(input) and no more.
  bool is_plain() const { return post_norm.kind == NormKind::None && scale == 1; }
};

}  // namespace minfer
