#include "engine/sequence.h"

#include <algorithm>
#include <utility>

namespace minfer {

PagePool::PagePool(int64_t n_pages) : users_(static_cast<size_t>(n_pages)) {
  for (int64_t page = n_pages; page-- > 0;) free_.push_back(narrow<int32_t>(page));
}

int32_t PagePool::take() {
  MINFER_CHECK(!free_.empty(), "no page is free of ", users_.size());
  const int32_t page = free_.back();
  free_.pop_back();
  users_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::drop(int32_t page) {
  if (--users_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

Sequence::Sequence(const Sequence& other, int64_t n_tokens)
    : pool_(other.pool_), window_(other.window_) {
  if (other.first_page_ > 0) return;
  const int64_t n_pages = std::min(n_tokens, other.pos_) / kPagePositions;
  pages_.assign(other.pages_.begin(), other.pages_.begin() + n_pages);
  for (const int32_t page : pages_) pool_->share(page);
  pos_ = n_pages * kPagePositions;
}

Sequence::Sequence(Sequence&& other) noexcept
    : pool_(other.pool_),
      window_(other.window_),
      pos_(std::exchange(other.pos_, 0)),
      first_page_(std::exchange(other.first_page_, 0)),
      pages_(std::exchange(other.pages_, {})) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(window_, other.window_);
  std::swap(pos_, other.pos_);
  std::swap(first_page_, other.first_page_);
  std::swap(pages_, other.pages_);
  return *this;
}

void Sequence::clear() {
  for (const int32_t page : std::span(pages_).subspan(static_cast<size_t>(first_page_))) {
    pool_->drop(page);
  }
  pages_.clear();
  pos_ = first_page_ = 0;
}

void Sequence::reserve(int64_t n) {
  give_back_unseen();
  while (std::ssize(pages_) * kPagePositions < pos_ + n) pages_.push_back(pool_->take());
}

// What no row at pos_ or behind it sees.
void Sequence::give_back_unseen() {
  if (window_ == 0) return;
  const int64_t seen_from = std::max<int64_t>(0, pos_ + 1 - window_);
  for (; first_page_ < seen_from / kPagePositions; ++first_page_) {
    pool_->drop(std::exchange(pages_[static_cast<size_t>(first_page_)], -1));
  }
}

int64_t Sequence::truncate(int64_t n_tokens) {
  MINFER_CHECK(n_tokens >= 0 && n_tokens <= pos_, "truncate to ", n_tokens, " of ", pos_);
  const int64_t seen_from = window_ == 0 ? 0 : std::max<int64_t>(0, n_tokens + 1 - window_);
  if (seen_from / kPagePositions < first_page_) {
    clear();
    return 0;
  }
  const auto drop_past = [&](int64_t n_pages) {
    for (; std::ssize(pages_) > n_pages; pages_.pop_back()) pool_->drop(pages_.back());
  };
  pos_ = n_tokens;
  drop_past(pages_for(n_tokens));
  // Rows that come next would be written to this page.
  if (pos_ % kPagePositions != 0 && pool_->is_shared(pages_.back())) {
    pos_ -= pos_ % kPagePositions;
    drop_past(pages_for(pos_));
  }
  return pos_;
}

int64_t most_pages(int64_t max_seq_len, int64_t window, int64_t chunk) {
  const int64_t all = pages_for(max_seq_len);
  // A chunk, the window in front of it, and at either end a page that is not whole.
  return window == 0 ? all : std::min(all, pages_for(window + chunk) + 1);
}

}  // namespace minfer
