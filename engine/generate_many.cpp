#include "engine/generate_many.h"

#include <algorithm>
#include <memory>

#include "engine/text_generation.h"

namespace minfer {
namespace {

// A request under way.
struct Text {
  Text(size_t number, GenerateRequest asked, const Model& model, Sequence its_sequence)
      : request(number),
        prompt(std::move(asked.prompt)),
        options(std::move(asked.options)),
        generation(model, prompt, options, on_token),
        sampling(generation.decode_sampling()),
        sequence(std::move(its_sequence)) {}

  size_t request;
  std::vector<TokenId> prompt;
  GenerateOptions options;
  OnToken on_token = nullptr;
  TextGeneration generation;
  std::optional<DecodeSampling> sampling;  // where the backend may choose
  Sequence sequence;
  TokenId last = 0;  // chosen, not evaluated yet
};
using Texts = std::vector<std::unique_ptr<Text>>;

class ManyTexts {
 public:
  ManyTexts(Executor& executor, const GenerateMany& many) : executor_(executor), many_(many) {
    MINFER_CHECK(many.n_parallel >= 1, many.n_parallel, " texts at once");
  }

  void run() {
    try {
      for (;;) {
        while (std::ssize(texts_) < many_.n_parallel && start_next()) continue;
        if (texts_.empty()) return;
        step_all();
      }
    } catch (const Cancelled&) {
      for (const auto& text : texts_) {
        if (text) report(*text, StopReason::Interrupted);
      }
    }
  }

 private:
  void throw_if_interrupted() const {
    if (many_.interrupted != nullptr && many_.interrupted->load()) throw Cancelled();
  }

  // Begins the next request, up to its first token; false where there is none.
  bool start_next() {
    throw_if_interrupted();
    std::optional<GenerateRequest> request = many_.next();
    if (!request) return false;
    auto text = std::make_unique<Text>(n_requests_++, std::move(*request), executor_.model(),
                                       sequence_for(request->prompt));
    Text& t = *text;
    texts_.push_back(std::move(text));
    const int64_t n_cached = t.sequence.pos();
    const Stopwatch since_start;
    bool is_over = false;
    try {
      const Tensor logits = executor_.evaluate_all(
          t.sequence, std::span(t.prompt).subspan(static_cast<size_t>(n_cached)));
      t.generation.result().prefill_seconds = since_start.seconds();
      t.generation.result().reused_tokens = n_cached;
      const auto on_host = executor_.fetch(logits);
      is_over = t.options.n_predict == 0 ? report(t, StopReason::Length)
                                         : take(t, t.generation.choose(on_host), on_host);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Numeric) throw;
      many_.on_error(t.request, error);
      is_over = true;
    }
    if (is_over) texts_.pop_back();
    return true;
  }

  // An empty one, or the pages that the prompt has in common with a text under way.
  Sequence sequence_for(std::span<const TokenId> prompt) {
    const Text* best = nullptr;
    int64_t most = 0;
    for (const auto& text : texts_) {
      const auto common = std::ranges::mismatch(prompt, text->prompt).in1 - prompt.begin();
      if (common > most) {
        best = text.get();
        most = common;
      }
    }
    if (best == nullptr) return executor_.make_sequence();
    // The last token is evaluated in any case: the text begins with its logits.
    return Sequence(best->sequence, std::min(most, std::ssize(prompt) - 1));
  }

  void step_all() {
    executor_.in_turns(std::span(texts_), [&](std::span<std::unique_ptr<Text>> texts) {
      throw_if_interrupted();
      executor_.backend().throw_if_cancelled();
      step(texts);
    });
    std::erase(texts_, nullptr);
  }

  // Texts that end become null.
  void step(std::span<std::unique_ptr<Text>> texts) {
    const Stopwatch since_step;
    std::vector<SequenceTokens> parts;
    for (const auto& text : texts) parts.push_back({&text->sequence, {&text->last, 1}, 1});
    std::span<const TokenId> chosen;
    std::span<const float> logits;
    try {
      chosen = choose(texts, parts);
      if (chosen.empty()) logits = executor_.decode(parts);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Numeric) throw;
      return step_one_by_one(texts, error);
    }
    const auto width = static_cast<size_t>(executor_.model().spec.vocab_size);
    const auto logits_of = [&](size_t i) {
      return logits.empty() ? logits : logits.subspan(i * width, width);
    };
    std::vector<TokenId> ids(chosen.begin(), chosen.end());
    for (size_t i = ids.size(); i < texts.size(); ++i) {
      ids.push_back(texts[i]->generation.choose(logits_of(i)));
    }
    const double seconds = since_step.seconds();
    for (size_t i = 0; i < texts.size(); ++i) {
      texts[i]->generation.result().decode_seconds += seconds;
      ++texts[i]->generation.result().decode_steps;
      if (take(*texts[i], ids[i], logits_of(i))) texts[i] = nullptr;
    }
  }

  // The tokens that the backend chooses; none, and nothing is evaluated, where the host has to.
  std::span<const TokenId> choose(std::span<const std::unique_ptr<Text>> texts,
                                  std::span<const SequenceTokens> parts) {
    std::vector<DecodeSampling> samplings;
    for (const auto& text : texts) {
      if (!text->sampling) return {};
      samplings.push_back(*text->sampling);
      samplings.back().first_draw = text->generation.result().tokens.size();
    }
    return executor_.choose(parts, samplings);
  }

  // The numbers of one of them are not finite: the others go on.
  void step_one_by_one(std::span<std::unique_ptr<Text>> texts, const Error& error) {
    if (texts.size() > 1) {
      for (size_t i = 0; i < texts.size(); ++i) step(texts.subspan(i, 1));
      return;
    }
    many_.on_error(texts[0]->request, error);
    texts[0] = nullptr;
  }

  // Takes the token that was chosen; the logits are read where log-probabilities are asked for.
  // True where the text is over.
  bool take(Text& text, TokenId id, std::span<const float> logits) {
    text.last = id;
    if (const auto end = text.generation.accept(text.last, logits)) return report(text, *end);
    if (text.sequence.pos() == executor_.max_seq_len()) return report(text, StopReason::Context);
    return false;
  }

  bool report(Text& text, StopReason reason) {
    many_.on_result(text.request, text.generation.finish(reason));
    return true;
  }

  Executor& executor_;
  const GenerateMany& many_;
  Texts texts_;
  size_t n_requests_ = 0;
};

}  // namespace

void generate_many(Executor& executor, const GenerateMany& many) {
  ManyTexts(executor, many).run();
}

}  // namespace minfer
