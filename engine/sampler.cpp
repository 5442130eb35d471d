#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "kernels/base/random.h"

namespace minfer {
namespace {

// Candidates from the best on, ties to the lower id, sorted only as far as they are looked at.
class Ranking {
 public:
  using Candidate = std::pair<float, TokenId>;

  explicit Ranking(std::vector<Candidate>& candidates) : candidates_(candidates) { sort_to(1); }

  const Candidate& operator[](size_t i) {
    sort_beyond(i);
    return candidates_[i];
  }

  // Puts rank i in its place, and some more, so that a walk down costs n log n in all.
  void sort_beyond(size_t i) {
    if (i >= n_sorted_) sort_to(std::max(i + 1, 2 * n_sorted_ + 64));
  }

  void sort_to(size_t n) {
    n = std::min(n, candidates_.size());
    if (n <= n_sorted_) return;
    const auto at = [&](size_t i) { return candidates_.begin() + static_cast<ptrdiff_t>(i); };
    std::partial_sort(at(n_sorted_), at(n), candidates_.end(),
                      [](const Candidate& a, const Candidate& b) {
                        return a.first != b.first ? a.first > b.first : a.second < b.second;
                      });
    n_sorted_ = n;
  }

  // Sum over the first n of exp((logit - best) / temperature), in the order they lie in.
  double sum_weights(size_t n, double temperature) {
    if (n < candidates_.size()) sort_to(n);
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += weight(i, temperature);
    return sum;
  }

  double weight(size_t i, double temperature) const {
    return std::exp((double{candidates_[i].first} - double{candidates_[0].first}) / temperature);
  }

 private:
  std::vector<Candidate>& candidates_;
  size_t n_sorted_ = 0;
};

// How many of the best stay after top-k, top-p (among those) and min-p.
size_t n_kept(Ranking& ranking, size_t n_candidates, const SamplerOptions& options) {
  const size_t k =
      options.top_k > 0 ? std::min(n_candidates, static_cast<size_t>(options.top_k)) : n_candidates;
  if (options.top_p >= 1 && options.min_p <= 0) return k;
  const double enough =
      options.top_p < 1 ? double{options.top_p} * ranking.sum_weights(k, 1) : HUGE_VAL;
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    ranking.sort_beyond(i);
    const double weight = ranking.weight(i, 1);
    if (i > 0 && (sum >= enough || weight < double{options.min_p})) return i;
    sum += weight;
  }
  return k;
}

double log_sum_exp(std::span<const float> logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - best);
  return best + std::log(sum);
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options, int64_t vocab_size) : options_(options) {
  const auto require_in = [](const char* name, float value, float low, float high) {
    MINFER_REQUIRE(Usage, value >= low && value <= high, name, " is ", value, ", expected ", low,
                   " to ", high);
  };
  require_in("temperature", options.temperature, 0, 1e6f);
  require_in("top_p", options.top_p, 0, 1);
  require_in("min_p", options.min_p, 0, 1);
  require_in("repeat_penalty", options.repeat_penalty, 1e-6f, 1e6f);
  require_in("presence_penalty", options.presence_penalty, -1e6f, 1e6f);
  require_in("frequency_penalty", options.frequency_penalty, -1e6f, 1e6f);
  MINFER_REQUIRE(Usage, options.top_k >= 0, "top_k is ", options.top_k, ", expected 0 or more");
  MINFER_REQUIRE(Usage, options.repeat_last_n >= -1, "repeat_last_n is ", options.repeat_last_n,
                 ", expected -1 or more");
  for (const auto& [id, bias] : options.logit_bias) {
    MINFER_REQUIRE(Usage, id >= 0 && id < vocab_size, "logit bias of token ", id,
                   ", the vocabulary has ", vocab_size);
    MINFER_REQUIRE(Usage, bias < HUGE_VALF, "logit bias of token ", id, " is ", bias,
                   ", expected a number or -inf");
  }
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> history,
                        uint64_t step) {
  for (size_t i = 0; i < logits.size(); ++i) {
    MINFER_REQUIRE(Numeric, std::isfinite(logits[i]), "logit of token ", i, " is ", logits[i]);
  }
  const std::span<const float> adjusted = adjust(logits, history);
  const auto best = std::max_element(adjusted.begin(), adjusted.end());  // the first of equals
  MINFER_REQUIRE(Usage, *best > kNever, "the logit biases leave no token to choose");
  if (options_.temperature == 0) return static_cast<TokenId>(best - adjusted.begin());

  candidates_.clear();
  for (size_t i = 0; i < adjusted.size(); ++i) {
    if (adjusted[i] > kNever) candidates_.emplace_back(adjusted[i], static_cast<TokenId>(i));
  }
  Ranking ranking(candidates_);
  const double temperature = double{options_.temperature};
  const size_t n = n_kept(ranking, candidates_.size(), options_);
  double left = uniform_draw(options_.seed, step) * ranking.sum_weights(n, temperature);
  for (size_t i = 0; i + 1 < n; ++i) {
    const TokenId id = ranking[i].second;
    left -= ranking.weight(i, temperature);
    if (left < 0) return id;
  }
  return ranking[n - 1].second;
}

// Logit bias, then the penalties.
std::span<const float> Sampler::adjust(std::span<const float> logits,
                                       std::span<const TokenId> history) {
  const SamplerOptions& o = options_;
  if (o.repeat_last_n >= 0 && std::ssize(history) > o.repeat_last_n) {
    history = history.last(static_cast<size_t>(o.repeat_last_n));
  }
  if (!o.has_penalties()) history = {};
  if (o.logit_bias.empty() && history.empty()) return logits;

  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : o.logit_bias) adjusted_[static_cast<size_t>(id)] += bias;
  std::unordered_map<TokenId, int64_t> counts;
  for (const TokenId id : history) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (id < 0 || id >= std::ssize(adjusted_)) continue;
    float& logit = adjusted_[static_cast<size_t>(id)];
    // Towards less likely on both sides of zero.
    logit = logit > 0 ? logit / o.repeat_penalty : logit * o.repeat_penalty;
    logit -= static_cast<float>(count) * o.frequency_penalty + o.presence_penalty;
  }
  return adjusted_;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int64_t k) {
  std::vector<std::pair<float, TokenId>> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.emplace_back(logits[i], static_cast<TokenId>(i));
  }
  Ranking ranking(candidates);
  const double total = log_sum_exp(logits);
  std::vector<TokenLogprob> top;
  for (size_t i = 0; i < std::min(candidates.size(), static_cast<size_t>(k)); ++i) {
    const auto [logit, id] = ranking[i];
    top.push_back({id, double{logit} - total});
  }
  return top;
}

double logprob_of(std::span<const float> logits, TokenId id) {
  return double{logits[static_cast<size_t>(id)]} - log_sum_exp(logits);
}

}  // namespace minfer
