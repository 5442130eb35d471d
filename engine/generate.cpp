#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

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
std::vector<TokenId> end_ids(const Model& model, const GenerateOptions& options) {
  std::vector<TokenId> ids = model.tokenizer->end_ids();
  ids.insert(ids.end(), options.end_ids.begin(), options.end_ids.end());
  std::erase_if(ids, [&model](TokenId id) { return id >= model.n_usable_tokens(); });
  return ids;
}

SamplerOptions sampler_options(const GenerateOptions& options, const std::vector<TokenId>& ends) {
  SamplerOptions sampler = options.sampler;
  if (options.ignore_eos) {
    for (const TokenId id : ends) sampler.logit_bias.emplace_back(id, kNever);
  }
  return sampler;
}

// The same for a plan of the backend, from the second token on; none where the host has to look at
// logits, or the choice depends on the tokens before.
std::optional<DecodeSampling> decode_sampling(const GenerateOptions& options,
                                              const SamplerOptions& o, int64_t n_tokens) {
  if (o.has_penalties() || options.n_logprobs > 0) return std::nullopt;
  DecodeSampling sampling{.temperature = o.temperature,
                          .top_k = o.top_k,
                          .top_p = o.top_p,
                          .min_p = o.min_p,
                          .seed = o.seed,
                          .first_draw = 1,
                          .n_tokens = n_tokens,
                          .banned = {}};
  for (const auto& [id, bias] : o.logit_bias) {
    if (bias != kNever) return std::nullopt;
    sampling.banned.push_back(id);
  }
  return sampling;
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
             const OnToken& on_token)
      : session_(session),
        tokenizer_(*session.model().tokenizer),
        options_(options),
        on_token_(on_token),
        ends_(end_ids(session.model(), options)),
        sampler_options_(sampler_options(options, ends_)),
        sampler_(sampler_options_, session.model().n_usable_tokens()),
        stream_(tokenizer_, prompt.size() == 1 && prompt[0] == tokenizer_.bos(), options),
        history_(prompt.begin(), prompt.end()) {}

  GenerateResult run(std::span<const TokenId> prompt, int64_t n_cached) {
    result_.prompt_tokens = std::ssize(prompt);
    result_.reused_tokens = n_cached;
    try {
      logits_ = evaluate(prompt.subspan(static_cast<size_t>(n_cached)));
      result_.prefill_seconds = since_start_.seconds();
      result_.stop_reason = choose_tokens();
    } catch (const Cancelled&) {
      result_.stop_reason = StopReason::Interrupted;
    }
    if (std::string held = stream_.flush(); !held.empty()) {
      emit({.id = -1, .text = std::move(held), .top = {}});
      if (stream_.stopped()) result_.stop_reason = StopReason::Stop;
    }
    return std::move(result_);
  }

 private:
  StopReason choose_tokens() {
    for (int64_t step = 0; step != options_.n_predict; ++step) {
      if (options_.interrupted != nullptr && options_.interrupted->load()) {
        return StopReason::Interrupted;
      }
      const TokenId id = choose(step);
      if (step == 0) result_.first_token_seconds = since_start_.seconds();
      if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) return StopReason::Eos;

      GeneratedToken token{.id = id, .text = stream_.push(id), .top = {}};
      if (options_.n_logprobs > 0) {
        token.logprob = logprob_of(logits_, id);
        token.top = top_logprobs(logits_, options_.n_logprobs);
      }
      result_.tokens.push_back(id);
      history_.push_back(id);
      emit(std::move(token));
      if (stream_.stopped()) return StopReason::Stop;
      if (step + 1 == options_.n_predict) break;  // nobody asks what would come next
      if (session_.pos() == session_.max_seq_len()) return StopReason::Context;
      if (step == 0) run_ = start_run(id);
      if (!run_) decode(id);
    }
    return StopReason::Length;
  }

  TokenId choose(int64_t step) {
    if (!run_) return sampler_.sample(logits_, history_, static_cast<uint64_t>(step));
    const TokenId id = run_->next();
    result_.decode_seconds = since_run_.seconds();
    ++result_.decode_steps;
    return id;
  }

  // Of all tokens behind the first one, where the backend can choose them.
  std::optional<Session::TokenRun> start_run(TokenId first) {
    const auto sampling =
        decode_sampling(options_, sampler_options_, session_.model().n_usable_tokens());
    if (!sampling) return std::nullopt;
    int64_t n_steps = session_.max_seq_len() - session_.pos();
    if (options_.n_predict > 0) n_steps = std::min(n_steps, options_.n_predict - 1);
    since_run_ = Stopwatch();
    return session_.run_from(first, n_steps, *sampling);
  }

  void decode(TokenId id) {
    const Stopwatch since_step;
    logits_ = evaluate({&id, 1});
    result_.decode_seconds += since_step.seconds();
    ++result_.decode_steps;
  }

  // Rows of the embedding past the vocabulary are padding, and never chosen.
  std::span<const float> evaluate(std::span<const TokenId> tokens) {
    return session_.eval(tokens).first(static_cast<size_t>(session_.model().n_usable_tokens()));
  }

  void emit(GeneratedToken token) {
    result_.text += token.text;
    if (on_token_) on_token_(token);
    if (options_.n_logprobs > 0 && token.id >= 0) result_.steps.push_back(std::move(token));
  }

  Session& session_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  const std::vector<TokenId> ends_;
  const SamplerOptions sampler_options_;
  Sampler sampler_;
  TextStream stream_;
  std::vector<TokenId> history_;
  GenerateResult result_;
  std::span<const float> logits_;  // of the last token, where the host chooses
  std::optional<Session::TokenRun> run_;
  Stopwatch since_start_, since_run_;
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
                        const GenerateOptions& options, const OnToken& on_token) {
  MINFER_CHECK(session.pos() == 0 || session.pos() < std::ssize(prompt), "a prompt of ",
               prompt.size(), " tokens in a session of ", session.pos());
  MINFER_REQUIRE(Input, session.model().tokenizer != nullptr, "the model has no tokenizer");
  return Generation(session, prompt, options, on_token).run(prompt, session.pos());
}

}  // namespace minfer
