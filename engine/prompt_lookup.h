#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/pass_cost.h"
#include "kernels/base/tensor.h"

namespace minfer {

// Foresees tokens of a text without a model (prompt lookup): where the last tokens have stood
// before, what followed them there is likely to follow again. Texts that are summed up, edited or
// repeated are full of such places.
//
// It foresees every token, and counts how often it was right by how many tokens agreed before. A
// draft is as long as these counts make it worth: each of its tokens saves the pass of one token if
// it and all before it are right.
class PromptLookup {
 public:
  // The next token of the text.
  void push(TokenId token);

  // What is likely to follow, `most` tokens at most, and none if no draft pays at the cost of a
  // pass that evaluates it.
  std::vector<TokenId> draft(int64_t most, const PassCost& cost) const;

 private:
  static constexpr int64_t kLeastMatch = 3;  // tokens that must agree
  static constexpr size_t kMatches = 16;     // longer ones count alike

  // How often a token was foreseen, by the tokens that agreed before it; old counts fade.
  struct Outcomes {
    double right = 0, all = 0;
  };
  static size_t index_of(int64_t match) {
    return static_cast<size_t>(match) < kMatches ? static_cast<size_t>(match) : kMatches - 1;
  }
  double probability(int64_t match) const;
  uint64_t last_tokens() const;  // a key of the last kLeastMatch
  void find_match();

  std::vector<TokenId> text_;
  std::unordered_map<uint64_t, int64_t> ends_;  // where kLeastMatch tokens ended last
  int64_t foreseen_ = 0;                        // the index of the token that is to follow
  int64_t match_ = 0;                           // tokens before it that agree; 0: none
  std::array<Outcomes, kMatches> outcomes_;
};

}  // namespace minfer
