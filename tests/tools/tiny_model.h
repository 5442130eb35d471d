#pragma once

#include <string>

#include "tests/support/model_files.h"
#include "tests/support/tensors.h"

namespace minfer::test {

struct TinyModel {
  uint32_t context = 1024;
  bool poisoned = false;     // one weight is not a number
  bool overflowing = false;  // every weight is finite, what comes out of the first block is not
  std::string architecture = "llama";
  std::string chat_template = "";
};

// A GGUF of the Llama architecture with random weights and a byte-level SPM vocabulary: any text
// goes in, and what comes out is no text, but always the same.
inline std::string tiny_gguf(const TinyModel& options = {}) {
  constexpr uint32_t kDim = 32, kFfnDim = 48, kHeads = 4, kLayers = 2, kVocab = 259;
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    tokens.push_back(std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">");
    types.push_back(6);
  }
  GgufBuilder gguf;
  const std::string& arch = options.architecture;
  gguf.pair("general.architecture", kText, gguf_text(arch));
  gguf.pair(arch + ".block_count", kU32, bytes_of_values(kLayers));
  gguf.pair(arch + ".context_length", kU32, bytes_of_values(options.context));
  gguf.pair(arch + ".embedding_length", kU32, bytes_of_values(kDim));
  gguf.pair(arch + ".feed_forward_length", kU32, bytes_of_values(kFfnDim));
  gguf.pair(arch + ".attention.head_count", kU32, bytes_of_values(kHeads));
  gguf.pair(arch + ".attention.layer_norm_rms_epsilon", kF32, bytes_of_values(1e-5f));
  gguf.pair("tokenizer.ggml.model", kText, gguf_text("llama"));
  gguf.texts("tokenizer.ggml.tokens", tokens);
  gguf.array("tokenizer.ggml.scores", kF32, std::vector<float>(kVocab, 0.0f));
  gguf.array("tokenizer.ggml.token_type", kI32, types);
  gguf.pair("tokenizer.ggml.bos_token_id", kU32, bytes_of_values(uint32_t{1}));
  gguf.pair("tokenizer.ggml.eos_token_id", kU32, bytes_of_values(uint32_t{2}));

  if (!options.chat_template.empty()) {
    gguf.pair("tokenizer.chat_template", kText, gguf_text(options.chat_template));
  }

  uint64_t seed = 0;
  const auto add = [&](const std::string& name, uint64_t in_dim, uint64_t out_dim, float scale) {
    const int64_t n = int64_t(in_dim * out_dim);
    const HostTensor values = random_normal(++seed, {n}, DType::F32, scale);
    if (options.poisoned && name == "blk.1.ffn_up.weight") values.as<float>()[5] = std::nanf("");
    std::string data(reinterpret_cast<const char*>(values.as<float>()), size_t(n) * sizeof(float));
    std::vector<uint64_t> dims = {in_dim};
    if (out_dim > 1) dims.push_back(out_dim);
    gguf.tensor({name, dims, 0, std::move(data)});
  };
  add("token_embd.weight", kDim, kVocab, 1);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string at = "blk." + std::to_string(layer) + ".";
    add(at + "attn_norm.weight", kDim, 1, 1);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      add(at + name + ".weight", kDim, kDim, 0.2f);
    }
    add(at + "ffn_norm.weight", kDim, 1, 1);
    add(at + "ffn_gate.weight", kDim, kFfnDim, 0.2f);
    const float scale = options.overflowing ? 1e30f : 0.2f;
    add(at + "ffn_up.weight", kDim, kFfnDim, scale);
    add(at + "ffn_down.weight", kFfnDim, kDim, scale);
  }
  add("output_norm.weight", kDim, 1, 1);
  return gguf.build();
}

}  // namespace minfer::test
