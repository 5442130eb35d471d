#include "kernels/cuda/decode/persistent/step_cursor.cuh"

#include <gtest/gtest.h>

#include <iterator>
#include <numeric>
#include <vector>

// A warp takes stages that come late, in the emulator: whatever it took before, it reads none that
// is not there.
namespace minfer::cuda {
namespace {

constexpr int kSlots = 8, kSlotBytes = 16;
// Stages at once (0: take_singly), and how many of them: none at all, fewer than fit, as many, and
// more.
struct Turn {
  int at_once, n;
};
constexpr int kFar = 12, kCopiesFar = 9, kCopiesNear = 5;
constexpr Turn kTurns[] = {{4, 0}, {4, 4}, {4, 3}, {2, 2}, {4, 8}, {1, 1}, {1, 0}, {4, 1}, {2, 1},
                           {4, 4}, {4, 0}, {2, 4}, {0, 3}, {1, 1}, {4, 6}, {0, 1}, {2, 2}};

struct Shared {
  uint64_t full[kSlots], empty[kSlots];
  int most_copies;
  int wanted;  // stages that are about to be taken, with those that have been
};

// Warp 0 takes the stages of all turns, and writes the number that it finds in each to `found`, and
// how many copies the block allows behind each turn to `copies`. Two lanes of warp 1 write stages
// in turns: one as soon as there is a slot, the other when the stage is wanted, and not at once.
// The warp asks ahead in all turns, or in every other one.
template <bool kAllAhead>
__global__ void take_turns(StepParams p, int* found, int* copies) {
  auto& shared = ptx::static_shared<Shared>();
  uint8_t* const slots = ptx::dynamic_shared<128>();
  const int lane = thread_index() % 32;
  if (thread_index() == 0) {
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrier_init(shared.full + i, 1);
      ptx::mbarrier_init(shared.empty + i, 1);
      *reinterpret_cast<int*>(slots + i * kSlotBytes) = -1;
    }
    shared.wanted = 0;
  }
  __syncthreads();
  const StepRing ring{slots,
                      ptx::shared_address(shared.full),
                      ptx::shared_address(shared.empty),
                      kSlots,
                      kSlotBytes,
                      &shared.most_copies,
                      kCopiesNear};
  if (thread_index() >= 32) {
    if (lane > 1) return;
    int n = 0;
    for (const Turn& turn : kTurns) n += turn.n;
    for (int i = lane; i < n; i += 2) {
      const int slot = i % kSlots;
      while (!ptx::mbarrier_is_complete(ring.empty + 8 * slot, i / kSlots % 2 ^ 1)) __nanosleep(1);
      if (lane == 1) {
        while (*static_cast<volatile int*>(&shared.wanted) <= i) __nanosleep(1);
        for (int k = 0; k < 100; ++k) __nanosleep(1);
      }
      *reinterpret_cast<int*>(slots + slot * kSlotBytes) = i;
      ptx::mbarrier_arrive(shared.full + slot);
    }
    return;
  }
  StepCursor<NoClock> cursor(NoClock(p), ring, /*keeps=*/true);
  cursor.n_far = lane == 0 ? kFar : 0;
  if (lane == 0) shared.most_copies = kCopiesFar;
  int next = 0, n_turns = 0;
  for (const Turn& turn : kTurns) {
    const bool ahead = kAllAhead || n_turns % 2 == 0;
    const int end = next + turn.n;
    if (lane == 0) shared.wanted = end;
    __syncwarp();
    const auto take = [&]<int kN>() {
      const auto f = [&](int, const uint8_t* const(&memory)[kN]) {
        for (int k = 0; k < kN && next < end; ++k, ++next) {
          if (lane == 0) found[next] = *reinterpret_cast<const int*>(memory[k]);
        }
      };
      if (ahead) cursor.template take<kN, true>(ring, turn.n, turn.n / kN, f, f);
      if (!ahead) cursor.template take<kN, false>(ring, turn.n, turn.n / kN, f, f);
    };
    if (turn.at_once == 0) {
      cursor.template take_singly<2>(ring, turn.n, [&](int, const uint8_t* const(&memory)[1]) {
        if (lane == 0) found[next] = *reinterpret_cast<const int*>(memory[0]);
        ++next;
      });
    }
    if (turn.at_once == 4) take.template operator()<4>();
    if (turn.at_once == 2) take.template operator()<2>();
    if (turn.at_once == 1) take.template operator()<1>();
    __syncwarp();
    if (lane == 0) copies[n_turns] = shared.most_copies;
    ++n_turns;
  }
}

TEST(StepCursor, ReadsNoStageThatIsNotThereAndCountsThem) {
  int n = 0;
  for (const Turn& turn : kTurns) n += turn.n;
  std::vector<int> expected(size_t(n), 0);
  std::iota(expected.begin(), expected.end(), 0);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(64);
  config.dynamicSmemBytes = kSlots * kSlotBytes;
  for (auto* const kernel : {take_turns<true>, take_turns<false>}) {
    std::vector<int> found(size_t(n), -2), copies(std::size(kTurns), 0);
    ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, StepParams{}, found.data(), copies.data()),
              cudaSuccess);
    EXPECT_EQ(found, expected);
    // Stages that were taken without asking ahead do not count.
    int counted = 0;
    for (size_t i = 0; i < std::size(kTurns); ++i) {
      const bool ahead = kernel == take_turns<true> || i % 2 == 0;
      if (ahead && kTurns[i].at_once != 0) counted += kTurns[i].n;
      EXPECT_EQ(copies[i], counted < kFar ? kCopiesFar : kCopiesNear) << i;
    }
  }
}

}  // namespace
}  // namespace minfer::cuda
