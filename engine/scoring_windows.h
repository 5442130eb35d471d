#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace minfer {

// How a text becomes predictions that count. Figures of different conventions are not comparable.
//   Gptq      windows of ctx tokens side by side, every prediction in them (GPTQ, AWQ and most
//             papers); what does not fill a window is dropped
//   LlamaCpp  the same windows, BOS in place of the first token of each, the second half scored
//   HfStride  windows that begin stride tokens apart, each token scored once, in the first window
//             that holds it (Hugging Face, "perplexity of fixed-length models")
//   LmEval    page by page, each token scored once after as much context as fits (the task
//             wikitext of lm-evaluation-harness)
enum class Convention { Gptq, LlamaCpp, HfStride, LmEval };

Convention convention_by_name(std::string_view name);  // "gptq", "llamacpp", "hf-stride", "lm-eval"
const char* convention_name(Convention convention);
// Tokens in a window where nobody says otherwise; 0: the trained context.
int64_t default_ctx(Convention convention);

// Tokens that are evaluated from an empty cache. Those from first_scored on are each predicted from
// all before it; the last one is predicted and not evaluated.
struct ScoringWindow {
  std::vector<TokenId> tokens;
  int64_t first_scored = 1;
};

struct ScoringOptions {
  Convention convention = Convention::Gptq;
  int64_t ctx = 2048;     // most tokens evaluated in a window
  int64_t stride = 512;   // HfStride
  bool raw_text = false;  // Gptq, HfStride: the file as it is, not joined
};

struct ScoringPlan {
  std::vector<ScoringWindow> windows;
  int64_t n_tokens = 0;   // of the text, with the BOS that the tokenizer adds
  std::string text_form;  // "raw", "hf-join", "pages": for the recipe, as is
  std::string bos;        // "none", "first-only", "each-window", "each-page"
  int64_t n_pages = 0, n_words = 0, n_bytes = 0;  // LmEval: of the pages as they stand in the file
};

// What stands before a text without context, as in lm-evaluation-harness: BOS, else EOS, whether or
// not the tokenizer would add it. Throws Input where there is neither.
TokenId prefix_token(const Tokenizer& tokenizer);

// Throws Usage for options that cannot be, Input where the text is too short for one window (two
// for LlamaCpp).
ScoringPlan plan_scoring(std::string_view text, const Tokenizer& tokenizer,
                         const ScoringOptions& options);

}  // namespace minfer
