#pragma once

#include <cmath>
#include <vector>

#include "loaders/tensor_source.h"
#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"

namespace minfer::test {

// A Llama model in float64, computed from the tensors of a file by their names there: Hugging Face
// files with RoPE pairs in two halves, GGUF files with adjacent pairs. It has no cache and no
// chunks, takes one position after another, and uses no code of models/ and engine/.
class Float64Llama {
 public:
  using Values = float64::Values;

  explicit Float64Llama(const TensorSource& source) : source_(source) {
    const Metadata& m = source.metadata;
    is_hf_ = source.key_style == KeyStyle::HuggingFace;
    const auto integer = [&](const char* hf, const char* gguf) {
      return m.integer(is_hf_ ? hf : gguf, 1, 1 << 20);
    };
    dim_ = integer("hidden_size", "llama.embedding_length");
    n_layers_ = integer("num_hidden_layers", "llama.block_count");
    n_heads_ = integer("num_attention_heads", "llama.attention.head_count");
    n_kv_heads_ = integer("num_key_value_heads", "llama.attention.head_count_kv");
    eps_ = m.number(is_hf_ ? "rms_norm_eps" : "llama.attention.layer_norm_rms_epsilon", 0, 1);
    theta_ = m.number_or(is_hf_ ? "rope_theta" : "llama.rope.freq_base", 1e4, 0, 1e9);
    head_dim_ = dim_ / n_heads_;
    embedding_ = has("model.embed_tokens.weight") ? read("model.embed_tokens.weight")
                 : has("lm_head.weight")          ? read("lm_head.weight")
                                                  : read("token_embd.weight");
    output_ = has("output.weight") ? read("output.weight") : embedding_;
  }

  struct Result {
    std::vector<Values> after_layer;  // [n_layers][n_tokens * dim]
    Values logits;                    // [n_tokens, vocab_size]
  };

  Result run(const std::vector<TokenId>& ids) const {
    Result result;
    Values x;
    for (const TokenId id : ids) {
      const auto row = embedding_.begin() + id * dim_;
      x.insert(x.end(), row, row + dim_);
    }
    for (int64_t i = 0; i < n_layers_; ++i) {
      add_attention(x, i);
      add_ffn(x, i);
      result.after_layer.push_back(x);
    }
    const Values normed =
        float64::rms_norm(x, read(is_hf_ ? "model.norm.weight" : "output_norm.weight"), eps_);
    result.logits = float64::matmul(normed, output_, dim_);
    return result;
  }

 private:
  bool has(const char* name) const { return source_.find(name) != nullptr; }
  Values read(const std::string& name) const {
    return doubles(to_f32_tensor(source_.read(*source_.find(name))));
  }
  Values of_layer(int64_t i, const char* hf, const char* gguf) const {
    return read(is_hf_ ? cat("model.layers.", i, ".", hf, ".weight")
                       : cat("blk.", i, ".", gguf, ".weight"));
  }

  // Rotates one head of one position in place.
  void rotate(double* head, int64_t pos) const {
    for (int64_t i = 0; i < head_dim_ / 2; ++i) {
      const double angle = double(pos) * std::pow(theta_, -2.0 * double(i) / double(head_dim_));
      double& a = is_hf_ ? head[i] : head[2 * i];
      double& b = is_hf_ ? head[i + head_dim_ / 2] : head[2 * i + 1];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = rotated;
    }
  }

  void add_attention(Values& x, int64_t layer) const {
    const Values normed =
        float64::rms_norm(x, of_layer(layer, "input_layernorm", "attn_norm"), eps_);
    Values q = float64::matmul(normed, of_layer(layer, "self_attn.q_proj", "attn_q"), dim_);
    Values k = float64::matmul(normed, of_layer(layer, "self_attn.k_proj", "attn_k"), dim_);
    const Values v = float64::matmul(normed, of_layer(layer, "self_attn.v_proj", "attn_v"), dim_);
    const int64_t n = int64_t(x.size()) / dim_;
    const auto q_head = [&](int64_t t, int64_t h) {
      return &q[size_t((t * n_heads_ + h) * head_dim_)];
    };
    const auto kv_offset = [&](int64_t t, int64_t h) {
      return size_t((t * n_kv_heads_ + h / (n_heads_ / n_kv_heads_)) * head_dim_);
    };
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t h = 0; h < n_heads_; ++h) rotate(q_head(t, h), t);
      for (int64_t h = 0; h < n_heads_; h += n_heads_ / n_kv_heads_) rotate(&k[kv_offset(t, h)], t);
    }
    Values attended(q.size());
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t h = 0; h < n_heads_; ++h) {
        Values scores;
        for (int64_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (int64_t i = 0; i < head_dim_; ++i)
            dot += q_head(t, h)[i] * k[kv_offset(s, h) + size_t(i)];
          scores.push_back(dot / std::sqrt(double(head_dim_)));
        }
        const Values p = float64::softmax(scores, scores.size());
        for (int64_t s = 0; s <= t; ++s) {
          for (int64_t i = 0; i < head_dim_; ++i) {
            attended[size_t((t * n_heads_ + h) * head_dim_ + i)] +=
                p[size_t(s)] * v[kv_offset(s, h) + size_t(i)];
          }
        }
      }
    }
    add(x, float64::matmul(attended, of_layer(layer, "self_attn.o_proj", "attn_output"), dim_));
  }

  void add_ffn(Values& x, int64_t layer) const {
    const Values normed =
        float64::rms_norm(x, of_layer(layer, "post_attention_layernorm", "ffn_norm"), eps_);
    Values gate = float64::matmul(normed, of_layer(layer, "mlp.gate_proj", "ffn_gate"), dim_);
    const Values up = float64::matmul(normed, of_layer(layer, "mlp.up_proj", "ffn_up"), dim_);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = float64::silu(gate[i]) * up[i];
    const int64_t ffn_dim = int64_t(gate.size()) * dim_ / int64_t(x.size());
    add(x, float64::matmul(gate, of_layer(layer, "mlp.down_proj", "ffn_down"), ffn_dim));
  }

  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const TensorSource& source_;
  bool is_hf_ = false;
  int64_t dim_ = 0, n_layers_ = 0, n_heads_ = 0, n_kv_heads_ = 0, head_dim_ = 0;
  double eps_ = 0, theta_ = 0;
  Values embedding_, output_;
};

inline double rms(const std::vector<double>& x) {
  double sum_sq = 0;
  for (const double v : x) sum_sq += v * v;
  return std::sqrt(sum_sq / double(x.size()));
}

// The largest |ours - reference|; NaN if ours has a NaN.
template <typename T>
double max_difference(std::span<const T> ours, const std::vector<double>& reference) {
  double worst = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(double(ours[i]) - reference[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

}  // namespace minfer::test
