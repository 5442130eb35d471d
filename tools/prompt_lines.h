#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate_many.h"
#include "tools/generate_command.h"

namespace minfer {

// A line of generate --prompts: what is to be generated, or why it cannot be.
struct PromptLine {
  int64_t number = 0;  // in the file, from 1
  std::string id;      // JSON: its "id", else the number
  GenerateRequest request;
  std::optional<uint64_t> seed;  // none where nothing is drawn
  std::string error;             // empty: none
  bool is_text = false;          // a "prompt"
};

// The lines of a file, each an object with one of
//   prompt      a text, as generate takes it
//   prompt_ids  a list of token ids
//   messages    a conversation, through the chat template
// and, as wished, "id" (any value), "n" (as -n) and what else is generate's to choose tokens by,
// with its names: seed, temp or temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n,
// presence_penalty, frequency_penalty, logit_bias (an object of ids), stop (a text or a list),
// ignore_eos, logprobs. What a line leaves out is `defaults`, and of the seed the command's, or a
// random one. Lines of white space alone are left out.
std::vector<PromptLine> parse_prompt_lines(std::string_view text,
                                           const GenerateCommandOptions& options,
                                           const GenerateOptions& defaults, const Model& model);

}  // namespace minfer
