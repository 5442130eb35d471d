#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace minfer {

// Which pages of a cache are free, and how many sequences have each of the others.
class PagePool {
 public:
  explicit PagePool(int64_t n_pages);

  int64_t n_free() const { return std::ssize(free_); }
  int32_t take();  // Internal where there is none
  void share(int32_t page) { ++users_[static_cast<size_t>(page)]; }
  void drop(int32_t page);
  bool is_shared(int32_t page) const { return users_[static_cast<size_t>(page)] > 1; }

 private:
  std::vector<int32_t> free_;   // the lowest last: it is taken first
  std::vector<int32_t> users_;  // number of sequences that have each page
};

// One text in the cache: its pages, and how many of its tokens they hold. The pool outlives it.
class Sequence {
 public:
  // window: positions that a query sees in every layer, 0 for all: pages behind it are given back.
  explicit Sequence(PagePool& pool, int64_t window = 0) : pool_(&pool), window_(window) {}
  // A sequence with the same beginning: it shares the whole pages of at most the first n_tokens of
  // the other one. It is empty if the other one has given back its first page.
  Sequence(const Sequence& other, int64_t n_tokens);
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence() { clear(); }

  int64_t pos() const { return pos_; }  // tokens that the cache holds
  std::span<const int32_t> pages() const { return pages_; }

  // Takes pages for n more tokens. The caller then evaluates rows_of_next(n) and calls advance(n).
  void reserve(int64_t n);
  SequenceRows rows_of_next(int64_t n) const { return {n, pos_, pages_}; }
  void advance(int64_t n) { pos_ += n; }

  // Forgets what lies past the first n_tokens and returns how many are left. That is fewer than
  // n_tokens if another sequence shares the page that they end in, and 0 if a page that the next
  // row would see has been given back.
  int64_t truncate(int64_t n_tokens);

 private:
  void clear();
  void give_back_unseen();

  PagePool* pool_;
  int64_t window_;
  int64_t pos_ = 0;
  int64_t first_page_ = 0;      // those in front of it have been given back
  std::vector<int32_t> pages_;  // of all positions; -1: given back
};

// The most pages that a sequence has at a time if it is evaluated chunk by chunk.
int64_t most_pages(int64_t max_seq_len, int64_t window, int64_t chunk);

}  // namespace minfer
