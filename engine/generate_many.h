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
  // Looked at before each step: texts under way end as interrupted then.
  const std::atomic<bool>* interrupted = nullptr;
  // The next request, numbered from 0 as they are asked for; none at the end.
  std::function<std::optional<GenerateRequest>()> next;
  // Of each request once, in the order in which they end.
  std::function<void(size_t request, const GenerateResult& result)> on_result;
  // In place of a result, where the numbers of that request alone are not finite.
  std::function<void(size_t request, const Error& error)> on_error;
};

// Generates texts side by side: a step evaluates the next token of each of them, and the place of
// one that has ended goes to the next request. What a prompt has in common with one under way is
// evaluated once, as far as it is whole pages of the cache. On the CPU each text is what generate()
// makes of it, to the bit. Throws as generate() does; Usage for a prompt that does not fit.
void generate_many(Executor& executor, const GenerateMany& many);

}  // namespace minfer
