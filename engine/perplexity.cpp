#include "engine/perplexity.h"

#include <algorithm>

#include "engine/sampler.h"
#include "kernels/base/parallel.h"

namespace minfer {
namespace {

struct RowScore {
  double nll = 0, reference_nll = 0, kl_divergence = 0;
  bool same_top = false;
};

// With p the reference's probabilities, KL = sum of p (log p - log q).
RowScore score_row(std::span<const float> logits, std::span<const float> reference,
                   TokenId target) {
  const auto top = std::ranges::max_element(logits);
  const auto reference_top = std::ranges::max_element(reference);
  double sum = 0, reference_sum = 0, weighted = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp(double{logits[i]} - double{*top});
    const double p = std::exp(double{reference[i]} - double{*reference_top});
    reference_sum += p;
    weighted += p * (double{reference[i]} - double{logits[i]});
  }
  const double log_sum = double{*top} + std::log(sum);
  const double reference_log_sum = double{*reference_top} + std::log(reference_sum);
  return {.nll = log_sum - double{logits[size_t(target)]},
          .reference_nll = reference_log_sum - double{reference[size_t(target)]},
          .kl_divergence = weighted / reference_sum + log_sum - reference_log_sum,
          .same_top = top - logits.begin() == reference_top - reference.begin()};
}

void add(Perplexity& result, const RowScore& row) {
  result.nll.add(row.nll);
  ModelDifference& difference = *result.difference;
  difference.reference_nll.add(row.reference_nll);
  difference.nll_difference.add(row.nll - row.reference_nll);
  difference.kl_divergence.add(row.kl_divergence);
  difference.n_same_top += row.same_top;
}

// Each likelihood may be finite and the perplexity too large for a number all the same.
void require_finite(const Perplexity& result) {
  MINFER_REQUIRE(Numeric, std::isfinite(result.value()) && std::isfinite(result.standard_error()),
                 "the perplexity is not finite: the mean NLL is ", result.nll.mean());
  if (!result.difference) return;
  const ModelDifference& difference = *result.difference;
  MINFER_REQUIRE(Numeric, std::isfinite(std::exp(difference.reference_nll.mean())),
                 "the reference's perplexity is not finite: its mean NLL is ",
                 difference.reference_nll.mean());
  for (const MeanEstimate& estimate : {difference.nll_difference, difference.kl_divergence}) {
    MINFER_REQUIRE(Numeric,
                   std::isfinite(estimate.mean()) && std::isfinite(estimate.standard_error()),
                   "the difference from the reference is not finite");
  }
}

class Evaluation {
 public:
  Evaluation(std::span<Session* const> sessions, Session* reference, int n_threads)
      : sessions_(sessions), reference_(reference), n_threads_(n_threads) {
    MINFER_CHECK(!sessions.empty(), "nothing to evaluate");
    vocab_size_ = sessions.front()->model().spec.vocab_size;
    chunk_ = sessions.front()->prefill_chunk();
    n_pages_ = sessions.front()->n_pages();
    for (const Session* session : sessions) require_comparable(*session);
    if (reference != nullptr) require_comparable(*reference);
    results_.resize(sessions.size());
    if (reference == nullptr) return;
    for (Perplexity& result : results_) result.difference.emplace();
  }

  // How many of the first windows go through one pass; 1 also where that one needs several.
  size_t n_in_one_pass(std::span<const ScoringWindow> windows) const {
    int64_t n_tokens = 0, n_pages = 0;
    size_t n = 0;
    for (; n < windows.size(); ++n) {
      n_tokens += n_evaluated(windows[n]);
      n_pages += pages_for(n_evaluated(windows[n]));
      if (n_tokens > chunk_ || n_pages > n_pages_) break;
    }
    return std::max<size_t>(n, 1);
  }

  void add_together(std::span<const ScoringWindow> windows) {
    std::vector<Session::Text> texts;
    std::vector<TokenId> targets;
    for (const ScoringWindow& window : windows) {
      const std::span<const TokenId> tokens = window.tokens;
      texts.push_back({tokens.first(tokens.size() - 1), window.first_scored - 1});
      targets.insert(targets.end(), tokens.begin() + window.first_scored, tokens.end());
      for (Perplexity& result : results_) result.n_evaluated += n_evaluated(window);
    }
    if (reference_ == nullptr) {
      return add_scores([&](Session& s) { return s.score_texts(texts, targets); });
    }
    add_rows([&](Session& session) { return session.eval_texts(texts); }, targets);
  }

  void add_window(const ScoringWindow& window) {
    for (Session* session : sessions_) session->truncate(0);
    if (reference_ != nullptr) reference_->truncate(0);
    const int64_t n = n_evaluated(window);
    for (int64_t begin = 0; begin < n; begin += chunk_) {
      add_chunk(window, begin, std::min(chunk_, n - begin));
    }
    for (Perplexity& result : results_) result.n_evaluated += n;
  }

  const std::vector<Perplexity>& results() const { return results_; }

  void require_finite_sums() const {
    for (const Perplexity& result : results_) {
      MINFER_REQUIRE(Numeric, std::isfinite(result.nll.sum()), "a likelihood is not finite");
    }
  }

 private:
  static int64_t n_evaluated(const ScoringWindow& window) { return std::ssize(window.tokens) - 1; }

  void require_comparable(const Session& session) {
    const int64_t found = session.model().spec.vocab_size;
    MINFER_REQUIRE(Usage, found == vocab_size_, "the models have ", vocab_size_, " and ", found,
                   " tokens: their logits do not compare");
    chunk_ = std::min(chunk_, session.prefill_chunk());
    n_pages_ = std::min(n_pages_, session.n_pages());
  }

  // Row t of the chunk predicts token begin + t + 1 of the window.
  void add_chunk(const ScoringWindow& window, int64_t begin, int64_t n_tokens) {
    const std::span<const TokenId> tokens(&window.tokens[size_t(begin)], size_t(n_tokens));
    const int64_t first = std::clamp<int64_t>(window.first_scored - 1 - begin, 0, n_tokens);
    const std::span<const TokenId> targets(&window.tokens[size_t(begin + first + 1)],
                                           size_t(n_tokens - first));
    if (reference_ == nullptr) {
      return add_scores([&](Session& session) { return session.score(tokens, first, targets); });
    }
    add_rows([&](Session& session) { return session.eval_all(tokens, first); }, targets);
  }

  // Without a reference the likelihoods are all that is asked of the logits.
  template <typename Score>
  void add_scores(const Score& score) {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      for (const double nll : score(*sessions_[i])) results_[i].nll.add(nll);
    }
  }

  // eval(session): the logits of the rows that predict the targets.
  template <typename Eval>
  void add_rows(const Eval& eval, std::span<const TokenId> targets) {
    const std::span<const float> reference = eval(*reference_);
    for (size_t i = 0; i < sessions_.size(); ++i) {
      score_rows(eval(*sessions_[i]), reference, targets);
      for (const RowScore& row : rows_) add(results_[i], row);
    }
  }

  void score_rows(std::span<const float> logits, std::span<const float> reference,
                  std::span<const TokenId> targets) {
    rows_.resize(targets.size());
    const auto width = static_cast<size_t>(vocab_size_);
    parallel_for(n_threads_, std::ssize(targets), [&](int64_t row) {
      const auto i = static_cast<size_t>(row);
      rows_[i] = score_row(logits.subspan(i * width, width), reference.subspan(i * width, width),
                           targets[i]);
    });
  }

  std::span<Session* const> sessions_;
  Session* reference_;
  int n_threads_;
  int64_t chunk_ = 0, n_pages_ = 0, vocab_size_ = 0;
  std::vector<RowScore> rows_;  // of one pass
  std::vector<Perplexity> results_;
};

}  // namespace

std::vector<Perplexity> evaluate_perplexity(std::span<const ScoringWindow> windows,
                                            std::span<Session* const> sessions, Session* reference,
                                            const PerplexityOptions& options) {
  Evaluation evaluation(sessions, reference, options.n_threads);
  const auto add_alone = [&](size_t i) {
    try {
      evaluation.add_window(windows[i]);
    } catch (const Error& e) {
      throw e.in(cat("window ", i));
    }
  };
  for (size_t done = 0; done < windows.size();) {
    const size_t begin = done, n = evaluation.n_in_one_pass(windows.subspan(begin));
    done += n;
    if (n == 1) {
      add_alone(begin);
    } else {
      try {
        evaluation.add_together(windows.subspan(begin, n));
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::Numeric) throw;
        for (size_t i = begin; i < done; ++i) add_alone(i);  // one of them fails the same way
        throw;
      }
    }
    evaluation.require_finite_sums();
    if (options.progress) {
      options.progress(int64_t(done), std::ssize(windows), evaluation.results().front().value());
    }
  }
  for (const Perplexity& result : evaluation.results()) require_finite(result);
  return evaluation.results();
}

}  // namespace minfer
