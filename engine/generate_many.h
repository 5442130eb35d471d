#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "engine/executor.h"
#include "engine/generate.h"

namespace minfer {

// A prompt of many, with options of its own.
struct GenerateRequest {
  std::vector<TokenId> prompt;
  GenerateOptions options;
};

struct GenerateMany {
  int64_t n_parallel = 1;  // texts at once; the executor's cache has room for them
  // Checked before each step: if true, the texts under way end as Interrupted. May be null.
  const std::atomic<bool>* interrupted = nullptr;
  // Returns the next request, none at the end. Requests are numbered from 0 in this order.
  std::function<std::optional<GenerateRequest>()> next;
  // Called once for each request, in the order in which the texts end.
  std::function<void(size_t request, const GenerateResult& result)> on_result;
  // Called in place of on_result if the logits of this request are not finite; others go on.
  std::function<void(size_t request, const Error& error)> on_error;
};

// Generates texts side by side: a step evaluates the next token of each of them, and the place of
// one that has ended goes to the next request. A prompt shares the whole cache pages of the prefix
// that it has in common with a text under way, and does not evaluate them again. On the CPU each
// text is to the bit what generate() gives. Throws as generate() does; Usage for a prompt that does
// not fit.
void generate_many(Executor& executor, const GenerateMany& many);

}  // namespace minfer
