#include "kernels/comm/rank_group.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "kernels/base/cancelled.h"
#include "kernels/comm/thread_comm.h"

namespace minfer {
namespace {

// Rethrows an error with the rank's name; one of the first rank is the caller's own.
[[noreturn]] void rethrow(const std::exception_ptr& error, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    throw rank == 0 ? e : e.in(cat("rank ", rank));
  }
}

bool is_consequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerStopped&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

RankGroup::RankGroup(Backend& first, std::vector<std::unique_ptr<Backend>> others,
                     std::unique_ptr<RankLinks> links)
    : first_(first),
      others_(std::move(others)),
      links_(std::move(links)),
      errors_(static_cast<size_t>(n_ranks())) {
  for (int rank = 0; rank < n_ranks(); ++rank) backend(rank).connect(&links_->communicator(rank));
  links_->bind_thread(0);
  try {
    for (int rank = 1; rank < n_ranks(); ++rank) {
      threads_.emplace_back([this, rank] { worker(rank); });
    }
  } catch (const std::system_error&) {
    end_threads();
    throw Error(ErrorKind::Memory, cat("the system starts no threads for ", n_ranks(), " ranks"));
  }
}

RankGroup::~RankGroup() { end_threads(); }

void RankGroup::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RankGroup::run(const std::function<void(int rank)>& f) {
  {
    const std::lock_guard lock(mutex_);
    MINFER_CHECK(n_running_ == 0, "a run of ranks inside another");
    function_ = &f;
    n_running_ = n_ranks() - 1;
    ++generation_;
  }
  changed_.notify_all();
  call(0);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_running_ == 0; });
  }
  const std::vector<std::exception_ptr> errors =
      std::exchange(errors_, std::vector<std::exception_ptr>(errors_.size()));
  if (std::ranges::all_of(errors, [](const auto& error) { return error == nullptr; })) return;
  const auto cause = std::ranges::find_if(
      errors, [](const auto& error) { return error != nullptr && !is_consequence(error); });
  MINFER_CHECK(cause != errors.end(), "ranks stopped without an error");
  try {
    links_->reset();
  } catch (const Error&) {
    // A card that has failed cannot be cleared either: the cause says more.
  }
  rethrow(*cause, static_cast<int>(cause - errors.begin()));
}

void RankGroup::check() {
  try {
    for (int rank = 0; rank < n_ranks(); ++rank) links_->communicator(rank).check();
  } catch (const Error&) {
    links_->reset();
    throw;
  }
}

void RankGroup::call(int rank) {
  try {
    (*function_)(rank);
  } catch (...) {
    errors_[static_cast<size_t>(rank)] = std::current_exception();
    links_->stop();
  }
}

void RankGroup::worker(int rank) {
  std::exception_ptr unbound;  // reported by the first run
  try {
    links_->bind_thread(rank);
  } catch (...) {
    unbound = std::current_exception();
  }
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_over_ || generation_ != seen; });
      if (is_over_) return;
      seen = generation_;
    }
    if (unbound) {
      errors_[static_cast<size_t>(rank)] = unbound;
      links_->stop();
    } else {
      call(rank);
    }
    {
      const std::lock_guard lock(mutex_);
      --n_running_;
    }
    changed_.notify_all();
  }
}

void on_all_ranks(Backend& first, const std::function<void(int i, Backend& backend)>& f) {
  if (first.ranks() == nullptr) return f(0, first);
  first.ranks()->run([&](int i) { f(i, first.ranks()->backend(i)); });
}

void check_all_ranks(Backend& first) {
  if (first.ranks() != nullptr) {
    first.ranks()->check();
  } else if (first.communicator() != nullptr) {
    first.communicator()->check();
  }
}

std::unique_ptr<Backend> join_ranks(std::vector<std::unique_ptr<Backend>> backends) {
  MINFER_CHECK(!backends.empty(), "no ranks");
  std::unique_ptr<Backend> first = std::move(backends.front());
  backends.erase(backends.begin());
  if (backends.empty()) return first;
  Backend& leader = *first;
  std::vector<Backend*> all = {&leader};
  for (const auto& backend : backends) all.push_back(backend.get());
  std::unique_ptr<RankLinks> links;
  if (leader.free_device_bytes()) {
    links = make_card_links(all);
  } else {
    links = std::make_unique<ThreadRanks>(static_cast<int>(all.size()));
  }
  leader.lead(std::make_shared<RankGroup>(leader, std::move(backends), std::move(links)));
  return first;
}

}  // namespace minfer
