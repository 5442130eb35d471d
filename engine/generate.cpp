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

// One text on its way from the prompt to its end.
class Generation {
 public:
  Generation(Session& session, std::span<const TokenId> prompt, const GenerateOptions& options,
             const std::function<void(const GeneratedToken&)>& on_token)
      : session_(session),
        tokenizer_(*session.model().tokenizer),
        options_(options),
        on_token_(on_token),
        ends_(end_ids(tokenizer_, options)),
        sampler_(sampler_options(options, ends_), tokenizer_.n_tokens()),
        stream_(tokenizer_, prompt.size() == 1 && prompt[0] == tokenizer_.bos(), options),
        history_(prompt.begin(), prompt.end()) {}

  GenerateResult run(std::span<const TokenId> prompt) {
    result_.prompt_tokens = std::ssize(prompt);
    std::span<const float> logits = evaluate(prompt);
    result_.prefill_seconds = since_start_.seconds();
    result_.stop_reason = choose_tokens(logits);
    if (std::string held = stream_.flush(); !held.empty()) {
      emit({.id = -1, .text = std::move(held), .top = {}});
      if (stream_.stopped()) result_.stop_reason = StopReason::Stop;
    }
    return std::move(result_);
  }

 private:
  StopReason choose_tokens(std::span<const float> logits) {
    for (int64_t step = 0; step != options_.n_predict; ++step) {
      if (options_.interrupted != nullptr && options_.interrupted->load()) {
        return StopReason::Interrupted;
      }
      const TokenId id = sampler_.sample(logits, history_, static_cast<uint64_t>(step));
      if (step == 0) result_.first_token_seconds = since_start_.seconds();
      if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) return StopReason::Eos;

      GeneratedToken token{.id = id, .text = stream_.push(id), .top = {}};
      if (options_.n_logprobs > 0) {
        token.logprob = logprob_of(logits, id);
        token.top = top_logprobs(logits, options_.n_logprobs);
      }
      result_.tokens.push_back(id);
      history_.push_back(id);
      emit(std::move(token));
      if (stream_.stopped()) return StopReason::Stop;
      if (step + 1 == options_.n_predict) break;  // nobody asks what would come next
      if (session_.pos() == session_.max_seq_len()) return StopReason::Context;

      const Stopwatch since_step;
      logits = evaluate({&id, 1});
      result_.decode_seconds += since_step.seconds();
      ++result_.decode_steps;
    }
    return StopReason::Length;
  }

  // Rows of the embedding past the vocabulary are padding, and never chosen.
  std::span<const float> evaluate(std::span<const TokenId> tokens) {
    return session_.eval(tokens).first(static_cast<size_t>(tokenizer_.n_tokens()));
  }

  void emit(GeneratedToken token) {
    result_.text += token.text;
    if (on_token_) on_token_(token);
    if (options_.n_logprobs > 0 && token.id >= 0) result_.steps.push_back(std::move(token));
  }

  Session& session_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  const std::function<void(const GeneratedToken&)>& on_token_;
  const std::vector<TokenId> ends_;
  Sampler sampler_;
  TextStream stream_;
  std::vector<TokenId> history_;
  GenerateResult result_;
  Stopwatch since_start_;
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
  return Generation(session, prompt, options, on_token).run(prompt);
}

}  // namespace minfer
