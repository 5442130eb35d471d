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
  std::vector<int32_t> users_;  // of each page
};

// One text in the cache: its pages, and how many of its tokens they hold. The pool outlives it.
class Sequence {
 public:
  // window: positions that a query sees in every layer, 0 for all: pages behind it are given back.
  explicit Sequence(PagePool& pool, int64_t window = 0) : pool_(&pool), window_(window) {}
  // The beginning of another one: shares its whole pages of the first n_tokens at most. None where
  // some of them have been given back.
  Sequence(const Sequence& other, int64_t n_tokens);
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence() { clear(); }

  int64_t pos() const { return pos_; }  // tokens that the cache holds
  std::span<const int32_t> pages() const { return pages_; }

  // Pages for n more tokens, which are then evaluated as rows_of_next(n) and counted by advance(n).
  void reserve(int64_t n);
  SequenceRows rows_of_next(int64_t n) const { return {n, pos_, pages_}; }
  void advance(int64_t n) { pos_ += n; }

  // Forgets what lies past the first n_tokens; returns how many are left: fewer where others share
  // the page that they end in, none where pages have been given back that would be seen again.
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

// Pages that a sequence has at most, evaluated chunk by chunk.
int64_t most_pages(int64_t max_seq_len, int64_t window, int64_t chunk);

}  // namespace minfer
