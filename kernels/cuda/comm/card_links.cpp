#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/comm/communicator.h"
#include "kernels/comm/thread_comm.h"
#include "kernels/cuda/comm/exchange.h"
#include "kernels/cuda/cuda_backend.h"

namespace minfer {
namespace cuda {
namespace {

// Elements up to which the one-shot all-reduce is used. It sends everything to every rank, while
// the ring sends each rank's slice on.
constexpr int64_t kMostOneShot = 2 * kOneShotWords;

// Ranks that are cards of this host. Each has memory that the others write to. The threads of the
// ranks meet before each operation: an allocation on one card may have to wait for kernels of
// another, which must not be one that waits for the first.
class CardLinks final : public RankLinks {
 public:
  explicit CardLinks(std::span<Backend* const> backends) : meeting_(int(backends.size())) {
    MINFER_REQUIRE(Usage, std::ssize(backends) <= kMostRanks, "--tp ", backends.size(),
                   ": at most ", kMostRanks, " cards");
    for (Backend* backend : backends) cards_.push_back(dynamic_cast<CudaBackend*>(backend));
    for (const CudaBackend* card : cards_) {
      MINFER_CHECK(card != nullptr, "a rank that is no card");
      MINFER_REQUIRE(Gpu, card->card_name() == cards_[0]->card_name(), "--tp ", cards_.size(), ": ",
                     cards_[0]->name(), " and ", card->name(), " are different cards");
    }
    for (int rank = 0; rank < n_ranks(); ++rank) open(rank);
    std::vector<Mailbox> mailboxes;
    for (const Memory& memory : memory_) {
      mailboxes.push_back({static_cast<uint4*>(memory.words.view().data),
                           static_cast<char*>(memory.inbox.view().data),
                           static_cast<RingChannel*>(memory.channels.view().data),
                           static_cast<uint32_t*>(memory.flags.view().data)});
    }
    for (int rank = 0; rank < n_ranks(); ++rank) {
      Ranks ranks{};
      std::ranges::copy(mailboxes, ranks.mailbox);
      ranks.rank = rank;
      ranks.n_ranks = n_ranks();
      ranks.failed = memory_[size_t(rank)].failed.data();
      communicators_.push_back(std::make_unique<Card>(*this, ranks));
    }
    test_links(mailboxes);
  }

  int n_ranks() const override { return int(cards_.size()); }
  Communicator& communicator(int rank) override { return *communicators_.at(size_t(rank)); }
  void bind_thread(int rank) override { select(rank); }
  void stop() override { meeting_.stop(); }
  // Kernels under way end by their deadlines; the counters of the cards begin anew.
  void reset() override {
    // No card may write to another one's counters after they are cleared: first all are done.
    for (int rank = 0; rank < n_ranks(); ++rank) {
      select(rank);
      MINFER_CUDA_CHECK(cudaStreamSynchronize(cards_[size_t(rank)]->stream()));
    }
    for (int rank = 0; rank < n_ranks(); ++rank) {
      select(rank);
      clear(rank);
      communicators_[size_t(rank)]->reset();
    }
    select(0);
    meeting_.reset();
  }

 private:
  struct Memory {
    DeviceTensor words, inbox, channels, flags;
    PinnedArray<int> failed{1};
  };

  class Card final : public Communicator {
   public:
    Card(CardLinks& links, const Ranks& ranks) : links_(links), ranks_(ranks) {}

    int rank() const override { return ranks_.rank; }
    int n_ranks() const override { return ranks_.n_ranks; }

    void all_reduce(Tensor x) override {
      const bool is_small = x.n_elements() <= kMostOneShot;
      if (!is_small && all_reduce_by(AllReduceKind::Ring, x)) return;
      all_reduce_by(AllReduceKind::OneShot, x);
    }

    bool all_reduce_by(AllReduceKind kind, Tensor x) override {
      MINFER_CHECK(x.dtype == DType::F32, "all_reduce of ", x.dtype, " on a card");
      const int64_t n = x.n_elements();
      auto* const data = x.as<float>();
      const bool is_ring = kind == AllReduceKind::Ring && n % 4 == 0;
      if (!is_ring && kind != AllReduceKind::OneShot) return false;
      links_.meeting_.barrier(rank());
      if (is_ring) {
        ring_all_reduce(stream(), ranks_, data, n);
        return true;
      }
      for (int64_t i = 0; i < n; i += kMostOneShot) {
        one_shot_all_reduce(stream(), ranks_, data + i, int(std::min(kMostOneShot, n - i)),
                            ++one_shots_);
      }
      return true;
    }

    void all_gather(Tensor out, Tensor part, int64_t begin) override {
      MINFER_CHECK(out.dtype == DType::F32 && part.dtype == DType::F32 &&
                       part.shape[0] == out.shape[0] && begin + part.shape[1] <= out.shape[1],
                   "all_gather of ", part.shape, " from column ", begin, " of ", out.shape);
      // Two sets of pointers take turns: the other ranks have read the last but one.
      std::vector<float*>& outs = links_.outs_[barriers_ / 2 % 2];
      outs[size_t(rank())] = out.as<float>();
      links_.meeting_.barrier(rank());
      cards_barrier(stream(), ranks_, ++barriers_);  // all may write to all
      send_columns(stream(), ranks_, outs.data(), part.as<float>(), int(out.shape[0]),
                   int(part.shape[1]), int(begin), int(out.shape[1]));
      cards_barrier(stream(), ranks_, ++barriers_);
    }

    void check() const override {
      const int failed = *static_cast<volatile int*>(ranks_.failed);
      MINFER_REQUIRE(Peer, failed == 0, "rank ", failed - 1, " (",
                     links_.cards_[size_t(failed - 1)]->name(), ") has not answered for 10 s");
    }

    void reset() { one_shots_ = barriers_ = 0; }

   private:
    cudaStream_t stream() const { return links_.cards_[size_t(rank())]->stream(); }

    CardLinks& links_;
    const Ranks ranks_;
    uint32_t one_shots_ = 0, barriers_ = 0;
  };

  void select(int rank) { MINFER_CUDA_CHECK(cudaSetDevice(cards_[size_t(rank)]->card())); }

  void open(int rank) {
    select(rank);
    const int own = cards_[size_t(rank)]->card();
    for (const CudaBackend* peer : cards_) {
      if (peer->card() == own) continue;
      int is_possible = 0;
      MINFER_CUDA_CHECK(cudaDeviceCanAccessPeer(&is_possible, own, peer->card()));
      MINFER_REQUIRE(Gpu, is_possible, "--tp ", cards_.size(), ": cuda:", own,
                     " and cuda:", peer->card(), " have no access to each other's memory");
      // Once in a process: it stays.
      static std::set<std::pair<int, int>> enabled;
      if (!enabled.contains({own, peer->card()})) {
        MINFER_CUDA_CHECK(cudaDeviceEnablePeerAccess(peer->card(), 0));
        enabled.emplace(own, peer->card());
      }
    }
    const int64_t n = n_ranks();
    Memory& memory = memory_.emplace_back();
    memory.words = allocate_device(DType::U8, {2 * n * kOneShotWords * 16});
    memory.inbox =
        allocate_device(DType::U8, {int64_t{kRingChannels} * kRingSlots * kRingSlotBytes});
    memory.channels =
        allocate_device(DType::U8, {int64_t{kRingChannels} * int64_t{sizeof(RingChannel)}});
    memory.flags = allocate_device(DType::U8, {n * int64_t{sizeof(uint32_t)}});
    clear(rank);
  }

  void clear(int rank) {
    Memory& memory = memory_[size_t(rank)];
    for (const DeviceTensor* part : {&memory.words, &memory.channels, &memory.flags}) {
      MINFER_CUDA_CHECK(cudaMemset(part->view().data, 0, size_t(part->view().n_bytes())));
    }
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    *memory.failed.data() = 0;
  }

  // Each card writes a pattern of its own to each other card, which looks whether it came.
  void test_links(const std::vector<Mailbox>& mailboxes) {
    constexpr int kWords = kRingSlotBytes / 16;
    for (int from = 0; from < n_ranks(); ++from) {
      for (int to = 0; to < n_ranks(); ++to) {
        if (from == to) continue;
        auto* const words = reinterpret_cast<uint4*>(mailboxes[size_t(to)].inbox);
        const auto seed = uint32_t(from * kMostRanks + to + 1);
        select(from);
        write_pattern(cards_[size_t(from)]->stream(), words, kWords, seed);
        MINFER_CUDA_CHECK(cudaStreamSynchronize(cards_[size_t(from)]->stream()));
        select(to);
        int* const n_wrong = memory_[size_t(to)].failed.data();
        count_wrong(cards_[size_t(to)]->stream(), words, kWords, seed, n_wrong);
        MINFER_CUDA_CHECK(cudaStreamSynchronize(cards_[size_t(to)]->stream()));
        MINFER_REQUIRE(Peer, *n_wrong == 0, "the link from ", cards_[size_t(from)]->name(), " to ",
                       cards_[size_t(to)]->name(), " changes what it carries: ", *n_wrong, " of ",
                       kWords, " words differ");
      }
    }
    select(0);
  }

  std::vector<CudaBackend*> cards_;
  std::vector<Memory> memory_;
  std::vector<std::unique_ptr<Card>> communicators_;
  ThreadRanks meeting_;
  std::vector<float*> outs_[2] = {std::vector<float*>(kMostRanks), std::vector<float*>(kMostRanks)};
};

}  // namespace
}  // namespace cuda

std::unique_ptr<RankLinks> make_card_links(std::span<Backend* const> backends) {
  return std::make_unique<cuda::CardLinks>(backends);
}

}  // namespace minfer
