#pragma once

#include <string>

#include "models/synthetic.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/specs.h"

namespace minfer::test {

inline constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// A model with random weights whose tokens are bytes, except that "ab" and two line ends are one
// token each. It ends its turns by <|im_end|>, if at all.
inline Model chat_model(Backend& backend, int64_t context) {
  const ModelSpec spec = llama_spec({.dim = 64,
                                     .ffn_dim = 96,
                                     .n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 16,
                                     .vocab_size = 260,
                                     .trained_seq_len = context});
  Model model = make_synthetic_model(spec, DType::F16, backend, 3);
  Metadata metadata = byte_vocabulary({"<|im_start|>", "<|im_end|>"});
  metadata.set("tokenizer.chat_template", kChatMl);
  model.tokenizer = make_gguf_tokenizer(metadata);
  return model;
}

}  // namespace minfer::test
