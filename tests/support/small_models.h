#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/support/memory_source.h"
#include "tests/support/tensors.h"

// Complete random checkpoints of two layers, as the files of each kind would hold them.
namespace minfer::test {

inline void add_random(MemorySource& source, const std::string& name, const Shape& shape,
                       float deviation = 0.2f) {
  const auto seed = static_cast<uint64_t>(source.tensors.size());
  source.add(name, random_normal(seed, shape, DType::F32, deviation));
}

// dim 16, ffn_dim 24, 4 heads of 4 elements, 2 key/value heads, 40 tokens
inline MemorySource small_hf_llama() {
  MemorySource source(KeyStyle::HuggingFace);
  Metadata& m = source.metadata;
  m.set("architectures", std::vector<std::string>{"LlamaForCausalLM"});
  m.set("hidden_size", int64_t{16});
  m.set("intermediate_size", int64_t{24});
  m.set("num_hidden_layers", int64_t{2});
  m.set("num_attention_heads", int64_t{4});
  m.set("num_key_value_heads", int64_t{2});
  m.set("max_position_embeddings", int64_t{64});
  m.set("vocab_size", int64_t{40});
  add_random(source, "model.embed_tokens.weight", {40, 16});
  for (int i = 0; i < 2; ++i) {
    const std::string at = cat("model.layers.", i, ".");
    add_random(source, at + "input_layernorm.weight", {16});
    add_random(source, at + "self_attn.q_proj.weight", {16, 16});
    add_random(source, at + "self_attn.k_proj.weight", {8, 16});
    add_random(source, at + "self_attn.v_proj.weight", {8, 16});
    add_random(source, at + "self_attn.o_proj.weight", {16, 16});
    add_random(source, at + "post_attention_layernorm.weight", {16});
    add_random(source, at + "mlp.gate_proj.weight", {24, 16});
    add_random(source, at + "mlp.up_proj.weight", {24, 16});
    add_random(source, at + "mlp.down_proj.weight", {16, 24});
  }
  add_random(source, "model.norm.weight", {16});
  add_random(source, "lm_head.weight", {40, 16});
  return source;
}

struct Gpt2Sizes {
  int64_t dim = 16, n_heads = 4, vocab_size = 40, context = 32;
};

inline MemorySource small_hf_gpt2(const Gpt2Sizes& c = {}) {
  MemorySource source(KeyStyle::HuggingFace);
  Metadata& m = source.metadata;
  m.set("architectures", std::vector<std::string>{"GPT2LMHeadModel"});
  m.set("n_embd", c.dim);
  m.set("n_layer", int64_t{2});
  m.set("n_head", c.n_heads);
  m.set("n_positions", c.context);
  m.set("vocab_size", c.vocab_size);
  const auto linear = [&](const std::string& name, int64_t in_dim, int64_t out_dim) {
    add_random(source, name + ".weight", {in_dim, out_dim},
               std::min(0.2f, 1 / std::sqrt(float(in_dim))));
    add_random(source, name + ".bias", {out_dim});
  };
  const auto norm = [&](const std::string& name) {
    add_random(source, name + ".weight", {c.dim});
    add_random(source, name + ".bias", {c.dim});
  };
  add_random(source, "transformer.wte.weight", {c.vocab_size, c.dim});
  add_random(source, "transformer.wpe.weight", {c.context, c.dim});
  for (int i = 0; i < 2; ++i) {
    const std::string at = cat("transformer.h.", i, ".");
    norm(at + "ln_1");
    linear(at + "attn.c_attn", c.dim, 3 * c.dim);
    linear(at + "attn.c_proj", c.dim, c.dim);
    norm(at + "ln_2");
    linear(at + "mlp.c_fc", c.dim, 4 * c.dim);
    linear(at + "mlp.c_proj", 4 * c.dim, c.dim);
  }
  norm("transformer.ln_f");
  return source;
}

struct LlamaSizes {
  int64_t dim = 16, ffn_dim = 24, n_heads = 4, n_kv_heads = 2, vocab_size = 40, context = 64;
  int64_t n_experts = 0;  // of which a token goes through two
};

// As small_hf_llama, with tied embeddings.
inline MemorySource small_gguf_llama(const LlamaSizes& c = {}) {
  MemorySource source(KeyStyle::Gguf);
  Metadata& m = source.metadata;
  m.set("general.architecture", std::string("llama"));
  m.set("llama.embedding_length", uint64_t(c.dim));
  m.set("llama.feed_forward_length", uint64_t(c.ffn_dim));
  m.set("llama.block_count", uint64_t{2});
  m.set("llama.attention.head_count", uint64_t(c.n_heads));
  m.set("llama.attention.head_count_kv", uint64_t(c.n_kv_heads));
  m.set("llama.context_length", uint64_t(c.context));
  m.set("llama.attention.layer_norm_rms_epsilon", 1e-5);
  if (c.n_experts != 0) {
    m.set("llama.expert_count", uint64_t(c.n_experts));
    m.set("llama.expert_used_count", uint64_t{2});
  }
  const int64_t kv_dim = c.dim / c.n_heads * c.n_kv_heads;
  add_random(source, "token_embd.weight", {c.vocab_size, c.dim});
  for (int i = 0; i < 2; ++i) {
    const std::string at = cat("blk.", i, ".");
    add_random(source, at + "attn_norm.weight", {c.dim});
    add_random(source, at + "attn_q.weight", {c.dim, c.dim});
    add_random(source, at + "attn_k.weight", {kv_dim, c.dim});
    add_random(source, at + "attn_v.weight", {kv_dim, c.dim});
    add_random(source, at + "attn_output.weight", {c.dim, c.dim});
    add_random(source, at + "ffn_norm.weight", {c.dim});
    if (c.n_experts == 0) {
      add_random(source, at + "ffn_gate.weight", {c.ffn_dim, c.dim});
      add_random(source, at + "ffn_up.weight", {c.ffn_dim, c.dim});
      add_random(source, at + "ffn_down.weight", {c.dim, c.ffn_dim});
    } else {
      add_random(source, at + "ffn_gate_inp.weight", {c.n_experts, c.dim});
      add_random(source, at + "ffn_gate_exps.weight", {c.n_experts, c.ffn_dim, c.dim});
      add_random(source, at + "ffn_up_exps.weight", {c.n_experts, c.ffn_dim, c.dim});
      add_random(source, at + "ffn_down_exps.weight", {c.n_experts, c.dim, c.ffn_dim});
    }
  }
  add_random(source, "output_norm.weight", {c.dim});
  return source;
}

}  // namespace minfer::test
