#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "kernels/base/tensor.h"

namespace minfer {

// A part of a word that is, or is to be merged into, a token.
struct Symbol {
  size_t begin = 0, n_bytes = 0;  // in the word
  TokenId id = -1;                // -1: the vocabulary has no such piece
  bool stands_for_unknown = false;
};

// What two neighbours become, and when: the lowest priority first, the leftmost among equals.
struct Merge {
  double priority = 0;
  TokenId id = -1;
};

// Merges neighbours as long as `find_merge(left, right)` returns a Merge, each time the best pair
// of the whole word. It takes O(n log n) for n symbols: a heap of candidates over a linked list. A
// candidate is outdated, and skipped, if the length of its symbols has changed.
template <typename FindMerge>  // (const Symbol&, const Symbol&) -> std::optional<Merge>
void merge_symbols(std::vector<Symbol>& symbols, const FindMerge& find_merge) {
  struct Candidate {
    Merge merge;
    int64_t left, right;
    size_t n_bytes;
    bool operator<(const Candidate& other) const {  // true: `other` comes first
      if (merge.priority != other.merge.priority) return merge.priority > other.merge.priority;
      return left > other.left;
    }
  };
  struct Links {
    int64_t previous, next;
  };
  const auto n = static_cast<int64_t>(symbols.size());
  std::vector<Links> links(symbols.size());
  const auto symbol = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto link = [&](int64_t i) -> Links& { return links[static_cast<size_t>(i)]; };
  std::vector<Candidate> first;
  const auto candidate = [&](int64_t left, int64_t right) -> std::optional<Candidate> {
    if (left < 0 || right >= n) return std::nullopt;
    const std::optional<Merge> merge = find_merge(symbol(left), symbol(right));
    if (!merge) return std::nullopt;
    return Candidate{*merge, left, right, symbol(left).n_bytes + symbol(right).n_bytes};
  };
  for (int64_t i = 0; i < n; ++i) {
    link(i) = {i - 1, i + 1};
    if (const auto found = candidate(i - 1, i)) first.push_back(*found);
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(first));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.left);
    Symbol& right = symbol(best.right);
    if (left.n_bytes == 0 || right.n_bytes == 0) continue;
    if (left.n_bytes + right.n_bytes != best.n_bytes) continue;
    left.n_bytes = best.n_bytes;
    left.id = best.merge.id;
    right.n_bytes = 0;
    link(best.left).next = link(best.right).next;
    if (link(best.left).next < n) link(link(best.left).next).previous = best.left;
    if (const auto found = candidate(link(best.left).previous, best.left)) queue.push(*found);
    if (const auto found = candidate(best.left, link(best.left).next)) queue.push(*found);
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.n_bytes == 0; });
}

}  // namespace minfer
