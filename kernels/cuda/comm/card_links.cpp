#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/comm/communicator.h"
#include "kernels/comm/thread_comm.h"
#include "kernels/cuda/comm/exchange.h"
#include "kernels/cuda/comm/peer_copies.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/peer_deadline.h"

namespace minfer {
namespace cuda {
namespace {

// The fastest algorithm for a payload: up to `one_shot` bytes OneShot, up to `two_shot` TwoShot,
// above Ring. One-shot sends everything to every rank, so with more ranks it ends earlier. Measured
// for two ranks: docs/benchmarks/cuda_all_reduce.csv.
struct Limits {
  int64_t one_shot, two_shot;
};
constexpr Limits limits_for(int n_ranks, bool adds_to_residual) {
  constexpr int64_t kAlways = int64_t{1} << 62;  // the ring has more steps of the same bytes
  if (n_ranks == 2) {
    return {kMostOneShotBytes, adds_to_residual ? kAlways : int64_t{24} << 20};
  }
  return {n_ranks <= 4 ? 128 << 10 : 64 << 10, kAlways};
}

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
      const auto is_same = [&](const CudaBackend* other) { return other->card() == card->card(); };
      most_on_a_card_ = std::max(most_on_a_card_, int(std::ranges::count_if(cards_, is_same)));
    }
    for (int rank = 0; rank < n_ranks(); ++rank) open(rank);
    std::vector<Mailbox> mailboxes;
    for (const Memory& memory : memory_) {
      mailboxes.push_back({static_cast<uint4*>(memory.words.view().data),
                           static_cast<uint32_t*>(memory.epochs.view().data),
                           static_cast<char*>(memory.inbox.view().data),
                           static_cast<RingChannel*>(memory.channels.view().data),
                           static_cast<TwoShotBlock*>(memory.blocks.view().data),
                           static_cast<uint64_t*>(memory.barriers.view().data)});
    }
    for (int rank = 0; rank < n_ranks(); ++rank) {
      Ranks ranks{};
      std::ranges::copy(mailboxes, ranks.mailbox);
      ranks.rank = rank;
      ranks.n_ranks = n_ranks();
      ranks.shares_card = most_on_a_card_ > 1;
      ranks.failed = memory_[size_t(rank)].failed.data();
      select(rank);
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
      communicators_[size_t(rank)]->synchronize_copies();
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
    DeviceTensor words, epochs, inbox, channels, blocks, barriers;
    PinnedArray<int> failed{1};
  };

  class Card final : public Communicator {
   public:
    Card(CardLinks& links, const Ranks& ranks)
        : links_(links),
          ranks_(ranks),
          copies_(links.cards_[size_t(ranks.rank)]->card(), stream()) {
      set_channels(0);
    }

    int rank() const override { return ranks_.rank; }
    int n_ranks() const override { return ranks_.n_ranks; }

    void all_reduce(Tensor x) override { reduce(x, {}); }
    bool all_reduce_add(Tensor residual, Tensor part) override {
      reduce(part, residual);
      return true;
    }

    bool all_reduce_add_norm(Tensor residual, Tensor part, Tensor normed, Tensor weight,
                             float eps) override {
      if (part.n_bytes() > limits_for(n_ranks(), true).one_shot ||
          !fits_one_shot_norm(part, residual)) {
        return false;
      }
      meet(nullptr);
      one_shot_add_norm(stream(), ranks_, residual, part, normed, weight, eps);
      return true;
    }

    bool all_reduce_made(const MadeSum& sum) override {
      const Shape& shape = sum.residual.shape;
      if (!has_copies_of(shape[0])) return false;
      reserve(shape[0], shape[1]);  // most often done before
      Card& other = *links_.communicators_[size_t(1 - rank())];
      copies_.sum(sum, rank(), other.copies_, [&] { meet(nullptr); });
      return true;
    }
    int64_t workspace_bytes(int64_t n_rows, int64_t n) const override {
      return has_copies_of(n_rows) ? PeerCopies::workspace_bytes(n_rows * n) : 0;
    }
    void reserve(int64_t n_rows, int64_t n) override {
      if (!has_copies_of(n_rows) || copies_.has_room(n_rows * n)) return;
      copies_.synchronize();
      meet(nullptr);  // the other rank no longer copies what is freed now
      copies_.reserve(n_rows * n);
    }

    bool all_reduce_by(AllReduceKind kind, Tensor x, Tensor residual) override {
      MINFER_CHECK(is_float(x.dtype) &&
                       (!residual || (residual.dtype == DType::F32 && residual.shape == x.shape)),
                   "all_reduce of ", x.dtype, " ", x.shape, ", residual ", residual.dtype, " ",
                   residual.shape);
      if (kind == AllReduceKind::OneShot) {
        if (x.n_bytes() > kMostOneShotBytes) return false;
        meet(nullptr);
        one_shot_all_reduce(stream(), ranks_, x, residual);
        return true;
      }
      if (!are_whole_words(x, residual)) return false;
      if (kind == AllReduceKind::TwoShot) {
        two_shot_all_reduce(stream(), ranks_, meet(x.data), x, residual, n_channels_);
        return true;
      }
      if (kind != AllReduceKind::Ring) return false;
      meet(nullptr);
      ring_all_reduce(stream(), ranks_, x, residual, n_channels_);
      return true;
    }

    // The channels of all ranks of a card have to find room on it together.
    void set_channels(int n) override {
      const int most = std::max(1, kMostChannels / links_.most_on_a_card_);
      n_channels_ = n > 0 ? std::min(n, most) : most;
    }

    void all_gather(Tensor out, Tensor part, int64_t begin) override {
      MINFER_CHECK(out.dtype == DType::F32 && part.dtype == DType::F32 &&
                       part.shape[0] == out.shape[0] && begin + part.shape[1] <= out.shape[1],
                   "all_gather of ", part.shape, " from column ", begin, " of ", out.shape);
      const OfRanks outs = meet(out.data);
      cards_barrier(stream(), ranks_);  // all may write to all
      send_columns(stream(), ranks_, outs, part.as<float>(), int(out.shape[0]), int(part.shape[1]),
                   int(begin), int(out.shape[1]));
      cards_barrier(stream(), ranks_);
    }

    void check() const override {
      const int failed = *static_cast<volatile int*>(ranks_.failed);
      MINFER_REQUIRE(Peer, failed == 0, "rank ", failed - 1, " (",
                     links_.cards_[size_t(failed - 1)]->name(), ") has not answered for ",
                     kPeerDeadlineSeconds, " s");
    }

    void synchronize_copies() { copies_.synchronize(); }
    void reset() {
      n_meetings_ = 0;
      copies_.reset();
    }

   private:
    // With more ranks, to copy whole parts would move more than the kernels do.
    bool has_copies_of(int64_t n_rows) const {
      return n_ranks() == 2 && n_rows >= PeerCopies::kLeastRows;
    }
    cudaStream_t stream() const { return links_.cards_[size_t(rank())]->stream(); }

    void reduce(Tensor x, Tensor residual) {
      const Limits limits = limits_for(n_ranks(), bool(residual));
      const int64_t n_bytes = x.n_bytes();
      AllReduceKind kind = AllReduceKind::OneShot;
      if (n_bytes > limits.one_shot && are_whole_words(x, residual)) {
        kind = n_bytes > limits.two_shot ? AllReduceKind::Ring : AllReduceKind::TwoShot;
      }
      if (kind != AllReduceKind::OneShot) {
        all_reduce_by(kind, x, residual);
      } else {
        meet(nullptr);
        one_shots(x, residual);
      }
    }

    void one_shots(Tensor x, Tensor residual) {
      const int64_t n = x.n_elements(), most = kMostOneShotBytes / bytes_of(x.dtype, 1);
      const auto elements = [](const Tensor& t, int64_t first, int64_t count) {
        return t ? t.reshaped({t.n_elements(), 1}).rows(first, count) : t;
      };
      for (int64_t i = 0; i < n; i += most) {
        const int64_t n_here = std::min(most, n - i);
        one_shot_all_reduce(stream(), ranks_, elements(x, i, n_here),
                            elements(residual, i, n_here));
      }
    }

    // Waits for the threads of the other ranks, and returns what each of them has passed. Two
    // arrays take turns: the other ranks have read the last but one.
    OfRanks meet(void* own) {
      OfRanks& all = links_.shared_[n_meetings_++ % 2];
      all.of_rank[rank()] = own;
      links_.meeting_.barrier(rank());
      return all;
    }

    CardLinks& links_;
    const Ranks ranks_;
    PeerCopies copies_;
    int n_channels_ = 0;
    uint32_t n_meetings_ = 0;
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
    const auto bytes = [](int64_t n_bytes) { return allocate_device(DType::U8, {n_bytes}); };
    memory.words = bytes(2 * n * kOneShotWords * 16);
    memory.epochs = bytes(kOneShotWords / kRegionWords * int64_t{sizeof(uint32_t)});
    memory.inbox = bytes(int64_t{kMostChannels} * ring_slots(n_ranks()) * kSlotBytes);
    memory.channels = bytes(kMostChannels * int64_t{sizeof(RingChannel)});
    memory.blocks = bytes(kMostChannels * int64_t{sizeof(TwoShotBlock)});
    memory.barriers = bytes(n * int64_t{sizeof(uint64_t)});
    clear(rank);
  }

  void clear(int rank) {
    Memory& memory = memory_[size_t(rank)];
    for (const DeviceTensor* part :
         {&memory.words, &memory.epochs, &memory.channels, &memory.blocks, &memory.barriers}) {
      MINFER_CUDA_CHECK(cudaMemset(part->view().data, 0, size_t(part->view().n_bytes())));
    }
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    *memory.failed.data() = 0;
  }

  // Each card writes a pattern of its own to each other card, which looks whether it came.
  void test_links(const std::vector<Mailbox>& mailboxes) {
    constexpr int kWords = kSlotBytes / 16;
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
  int most_on_a_card_ = 1;  // ranks; more than one in tests only
  std::vector<Memory> memory_;
  std::vector<std::unique_ptr<Card>> communicators_;
  ThreadRanks meeting_;
  OfRanks shared_[2] = {};
};

}  // namespace
}  // namespace cuda

std::unique_ptr<RankLinks> make_card_links(std::span<Backend* const> backends) {
  return std::make_unique<cuda::CardLinks>(backends);
}

}  // namespace minfer
