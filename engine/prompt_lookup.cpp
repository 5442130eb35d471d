#include "engine/prompt_lookup.h"

#include <algorithm>

namespace minfer {
namespace {

constexpr double kFade = 0.98;  // of a count, when another is added
// Before anything was counted: as if 2 tokens had been foreseen, match / (match + 2) of them right.
constexpr double kPriorCount = 2;
double prior(double match) { return match / (match + 2); }

}  // namespace

void PromptLookup::push(TokenId token) {
  const bool was_right = match_ > 0 && text_[static_cast<size_t>(foreseen_)] == token;
  if (match_ > 0) {
    Outcomes& counted = outcomes_[index_of(match_)];
    counted.right = kFade * counted.right + (was_right ? 1 : 0);
    counted.all = kFade * counted.all + 1;
  }
  text_.push_back(token);
  if (was_right) {
    ++foreseen_;
    ++match_;
  } else {
    find_match();
  }
  if (std::ssize(text_) >= kLeastMatch) ends_[last_tokens()] = std::ssize(text_);
}

// The last place where the last tokens stood before, and how many of them agree.
void PromptLookup::find_match() {
  match_ = 0;
  if (std::ssize(text_) < kLeastMatch) return;
  const auto found = ends_.find(last_tokens());
  if (found == ends_.end()) return;
  foreseen_ = found->second;
  const auto end = text_.rbegin(), before = text_.rend() - foreseen_;
  match_ = std::mismatch(before, text_.rend(), end).first - before;
  if (match_ < kLeastMatch) match_ = 0;  // other tokens with the same key
}

uint64_t PromptLookup::last_tokens() const {
  uint64_t key = 0;
  for (auto token = text_.end() - kLeastMatch; token != text_.end(); ++token) {
    key = key * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(*token) + 1;
  }
  return key;
}

double PromptLookup::probability(int64_t match) const {
  const Outcomes& counted = outcomes_[index_of(match)];
  return (counted.right + kPriorCount * prior(double(match))) / (counted.all + kPriorCount);
}

std::vector<TokenId> PromptLookup::draft(int64_t most, const PassCost& cost) const {
  std::vector<TokenId> tokens;
  if (match_ == 0) return tokens;
  // The tokens that a pass of n drafted tokens gives, on average, over what it costs.
  double best = 1, given = 1, all_right = 1;
  int64_t n_best = 0;
  for (int64_t n = 1; n <= most; ++n) {
    all_right *= probability(match_ + n - 1);
    given += all_right;
    const double gain = given / cost.of(n);
    if (gain > best) {
      best = gain;
      n_best = n;
    }
  }
  // Behind the end of the text the draft goes on with itself.
  for (int64_t i = 0; i < n_best; ++i) {
    const int64_t at = foreseen_ + i, past = at - std::ssize(text_);
    tokens.push_back(past < 0 ? text_[static_cast<size_t>(at)] : tokens[static_cast<size_t>(past)]);
  }
  return tokens;
}

}  // namespace minfer
