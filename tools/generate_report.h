#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/generate.h"

namespace minfer {

// "model llama 135M Q4_1, 0.09 GiB (5.8 bpw), 30 layers | kv 2048 x f16 = 0.04 GiB | cpu ... |
// loaded in 0.4 s"
std::string load_line(const Executor& executor, const SessionOptions& options);

// "prompt 12 tok, 80 ms, 150.0 tok/s | first token 81 ms | 128 tok, ... | seed 1"
//   token_seconds  time of each generated token after the first, unsorted
std::string finish_line(const GenerateResult& result, std::vector<double> token_seconds,
                        const Model& model, std::optional<uint64_t> seed);

// "64 texts, 8192 tok in 12.0 s, 682.7 tok/s"
std::string texts_line(size_t n_texts, int64_t n_tokens, double seconds);

// From the start of the process, without waiting for a prompt on stdin.
struct StartTimes {
  double seconds = 0;         // until the model is opened: of a card mostly its context
  double loaded_seconds = 0;  // until the prompt is evaluated
};

struct ResultReport {
  const GenerateResult& result;
  const StartTimes& start;
  const Model& model;
  std::optional<uint64_t> seed;  // none where nothing was drawn
  std::string activations;
  bool with_logprobs;
  std::optional<std::string> echo;  // the prompt, where it is asked for
};
// The object of `generate --json`, and the last one of `--jsonl`, which has all but the text and
// its tokens.
std::string result_json(const ResultReport& report);
std::string done_json(const ResultReport& report);
// The same as result_json on one line of many, with the id of the request, which is JSON; and what
// stands there for a request that failed.
std::string line_json(const ResultReport& report, const std::string& id);
std::string error_json(const std::string& id, const std::string& error);
// One token of `generate --jsonl`, on one line.
std::string token_json(const GeneratedToken& token, int64_t index, const Model& model,
                       bool with_logprobs);

}  // namespace minfer
