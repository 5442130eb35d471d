#include "engine/generate.h"

#include <algorithm>
#include <optional>

#include "engine/draft_decoder.h"
#include "engine/session.h"
#include "engine/text_generation.h"

namespace minfer {
namespace {

// One text in a session of its own.
class Generation {
 public:
  Generation(Session& session, std::span<const TokenId> prompt, const GenerateOptions& options,
             const OnToken& on_token)
      : session_(session), options_(options), text_(session.model(), prompt, options, on_token) {}

  GenerateResult run(std::span<const TokenId> prompt, int64_t n_cached) {
    text_.result().reused_tokens = n_cached;
    StopReason reason = StopReason::Interrupted;
    try {
      const Stopwatch since_start;
      next_.logits = session_.eval(prompt.subspan(static_cast<size_t>(n_cached)));
      text_.result().prefill_seconds = since_start.seconds();
      if (options_.drafts) drafts_.emplace(session_, prompt, text_.decode_sampling());
      reason = choose_tokens();
    } catch (const Cancelled&) {
    }
    if (text_.result().decode_steps > 0) text_.result().decode_seconds = since_first_.seconds();
    drafts_.reset();
    return text_.finish(reason);
  }

 private:
  StopReason choose_tokens() {
    if (options_.n_predict == 0) return StopReason::Length;
    for (bool is_first = true;; is_first = false) {
      if (options_.interrupted != nullptr && options_.interrupted->load()) {
        return StopReason::Interrupted;
      }
      const TokenId id = next_token();
      if (const std::optional<StopReason> end = text_.accept(id, next_.logits)) return *end;
      const int64_t pos = drafts_ ? drafts_->pos() : session_.pos();
      if (pos == session_.max_seq_len()) return StopReason::Context;
      if (is_first) since_first_ = Stopwatch();
      if (is_first && !drafts_) run_ = start_run(id);
      if (!run_) decode(id);
    }
  }

  TokenId next_token() {
    if (!run_) return next_.chosen ? *next_.chosen : text_.choose(next_.logits);
    const TokenId id = run_->next();
    ++text_.result().decode_steps;
    return id;
  }

  // Of all tokens behind the first one, where the backend can choose them.
  std::optional<Session::TokenRun> start_run(TokenId first) {
    const auto sampling = text_.decode_sampling();
    if (!sampling) return std::nullopt;
    int64_t n_steps = session_.max_seq_len() - session_.pos();
    if (options_.n_predict > 0) n_steps = std::min(n_steps, options_.n_predict - 1);
    return session_.run_from(first, n_steps, *sampling);
  }

  void decode(TokenId id) {
    GenerateResult& result = text_.result();
    if (drafts_) {
      // The last token needs no logits behind it.
      const int64_t n_more =
          options_.n_predict < 0 ? -1 : options_.n_predict - std::ssize(result.tokens) - 1;
      next_ = drafts_->eval(id, n_more);
      result.drafted_tokens = drafts_->drafted();
      result.accepted_tokens = drafts_->accepted();
      result.decode_steps = drafts_->passes();
    } else {
      next_.logits = session_.eval({&id, 1});
      ++result.decode_steps;
    }
  }

  Session& session_;
  const GenerateOptions& options_;
  TextGeneration text_;
  DraftDecoder::NextToken next_;  // behind the last token; unused while a run goes on
  std::optional<Session::TokenRun> run_;
  std::optional<DraftDecoder> drafts_;
  Stopwatch since_first_;  // token of the text
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
