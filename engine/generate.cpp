#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "engine/stop_matcher.h"

namespace minfer {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Every id that ends the text.
std::vector<TokenId> end_ids(const Tokenizer& tokenizer, const GenerateOptions& options) {
  std::vector<TokenId> ids = tokenizer.end_ids();
  ids.insert(ids.end(), options.end_ids.begin(), options.end_ids.end());
  return ids;
}

SamplerOptions sampler_options(const GenerateOptions& options, const std::vector<TokenId>& ends) {
  SamplerOptions sampler = options.sampler;
  if (options.ignore_eos) {
    for (const TokenId id : ends) {
      sampler.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
    }
  }
  return sampler;
}

// Token ids to text that is certain: whole characters, no part of a stop string.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, bool at_start, const GenerateOptions& options)
      : decoder_(tokenizer, at_start, options.show_special), stops_(options.stop) {}

  std::string push(TokenId id) { return stops_.push(decoder_.push(id)); }
  bool stopped() const { return stops_.stopped(); }
  std::string flush() {
    const std::string tail = stops_.push(decoder_.flush());
    return tail + stops_.flush();
  }

 private:
  StreamDecoder decoder_;
  StopMatcher stops_;
};

}  // namespace

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::Eos:
      return "eos";
    case StopReason::Stop:
      return "stop";
    case StopReason::Length:
      return "length";
    case StopReason::Context:
      return "context";
    case StopReason::Interrupted:
      return "interrupted";
  }
  throw Error(ErrorKind::Internal, "stop_reason_name");
}

GenerateResult generate(Session& session, std::span<const TokenId> prompt,
                        const GenerateOptions& options,
                        const std::function<void(const GeneratedToken&)>& on_token) {
  MINFER_CHECK(session.pos() == 0, "generate in a session of ", session.pos(), " tokens");
  MINFER_REQUIRE(Input, session.model().tokenizer != nullptr, "the model has no tokenizer");
  const Tokenizer& tokenizer = *session.model().tokenizer;
  // Rows of the embedding past the vocabulary are padding: never chosen.
  const auto n_tokens = static_cast<size_t>(tokenizer.n_tokens());
  const std::vector<TokenId> ends = end_ids(tokenizer, options);
  Sampler sampler(sampler_options(options, ends), tokenizer.n_tokens());
  const bool at_start = prompt.size() == 1 && prompt[0] == tokenizer.bos();
  TextStream stream(tokenizer, at_start, options);

  GenerateResult result;
  result.prompt_tokens = std::ssize(prompt);
  std::vector<TokenId> history(prompt.begin(), prompt.end());
  const auto emit = [&](GeneratedToken token) {
    result.text += token.text;
    if (on_token) on_token(token);
    if (options.n_logprobs > 0 && token.id >= 0) result.steps.push_back(std::move(token));
  };

  const Stopwatch since_start;
  std::span<const float> logits = session.eval(prompt).first(n_tokens);
  result.prefill_seconds = since_start.seconds();
  for (int64_t step = 0;; ++step) {
    if (step == options.n_predict) {
      result.stop_reason = StopReason::Length;
      break;
    }
    if (options.interrupted != nullptr && options.interrupted->load()) {
      result.stop_reason = StopReason::Interrupted;
      break;
    }
    const TokenId id = sampler.sample(logits, history, static_cast<uint64_t>(step));
    if (step == 0) result.first_token_seconds = since_start.seconds();
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result.stop_reason = StopReason::Eos;
      break;
    }
    GeneratedToken token{.id = id, .text = stream.push(id), .top = {}};
    if (options.n_logprobs > 0) {
      token.logprob = logprob_of(logits, id);
      token.top = top_logprobs(logits, options.n_logprobs);
    }
    result.tokens.push_back(id);
    history.push_back(id);
    emit(std::move(token));
    if (stream.stopped()) {
      result.stop_reason = StopReason::Stop;
      break;
    }
    if (step + 1 == options.n_predict) continue;  // nobody asks for what comes after the last one
    if (session.pos() == session.max_seq_len()) {
      result.stop_reason = StopReason::Context;
      break;
    }
    const Stopwatch since_step;
    logits = session.eval({&id, 1}).first(n_tokens);
    result.decode_seconds += since_step.seconds();
    ++result.decode_steps;
  }
  if (std::string held = stream.flush(); !held.empty()) {
    emit({.id = -1, .text = std::move(held), .top = {}});
    if (stream.stopped()) result.stop_reason = StopReason::Stop;
  }
  return result;
}

}  // namespace minfer
