#pragma once

#include "models/families/llama_like.h"

// What OLMo 2 and 3 have in common; private to models/families.
namespace minfer {

// Norms behind both halves of a block and none before them, and an RMSNorm of all queries of a
// token, and one of all its keys.
void set_olmo2_blocks(ModelSpec& spec);
WeightNames olmo2_hf_names();
WeightNames olmo2_gguf_names();

}  // namespace minfer
