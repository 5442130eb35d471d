#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/emulated/emulator.h"

// What the files of the emulator have in common: the running cluster, its threads and how they
// wait.
namespace minfer::emulated {

constexpr int kMaxSharedBytes = 227 << 10;
constexpr int kWarp = 32, kWarpgroup = 128;

struct Meeting {  // the state of a barrier
  int n_here = 0;
  unsigned round = 0;
};
struct Mbarrier {
  int arrivals = 0, missing = 0, bytes_missing = 0;
  unsigned phase = 0;
};
struct BoxStore {
  TensorMap map;
  uint32_t from;
  int x, y, z;
  Write how;
};
struct BoxLoad {
  TensorMap map;
  uint32_t to, barrier;
  int x, y, z;
  std::vector<int> ranks;
};
struct WordStore {
  uint4* to;
  uint4 word;
};
struct AsyncCopy {
  void* to;
  const void* from;
  size_t n_bytes, n_zeros;
};
// Asynchronous work of a thread, in groups that it commits and waits for.
template <typename T>
struct Groups {
  std::vector<T> open;
  std::deque<std::vector<T>> committed;

  void commit() { committed.push_back(std::exchange(open, {})); }
  bool are_done() const {
    return open.empty() && std::all_of(committed.begin(), committed.end(),
                                       [](const auto& group) { return group.empty(); });
  }
  template <typename F>
  void wait(int pending, const F& perform) {
    for (; std::ssize(committed) > pending; committed.pop_front()) {
      for (const T& work : committed.front()) perform(work);
    }
  }
};
struct WarpgroupMma {
  std::array<void*, kWarpgroup> d;
  int n_threads = 0;  // that have issued it
  int n_sums = 0;
  Operand a, b;
  std::array<const uint32_t*, kWarpgroup> a_registers;
  bool accumulate = false;
  Half type = Half::F16;
};
struct Warpgroup {
  std::deque<WarpgroupMma> mmas;  // in flight
  size_t n_done = 0;
  size_t n_due = 0;        // that threads have waited for so far
  unsigned due_round = 0;  // the round in which the last of these are done
};
struct Warp {
  Meeting meeting;
  const char* what = nullptr;  // what its lanes meet for
  std::array<void*, kWarp> lanes;
};

// A place in a program, with its own stack.
struct Context {
  ucontext_t start;
  jmp_buf place;
  bool has_place = false;  // it has begun, and was switched away from
};

// What a round asks of every thread. It is apart from the thread and beside that of the next one:
// cache misses on it were a seventh of the time of a test of the persistent step.
struct Turn {
  const Meeting* meeting = nullptr;  // unless null, the thread waits for the end of `round` of it
  unsigned round = 0;
  bool is_done = false;
};

struct Block;
struct Thread {
  Context context;
  Block* block = nullptr;
  int index = 0;
  int n_registers = 0;
  Turn* turn = nullptr;
  std::function<bool()> may_go_on;  // if null, it may
  Groups<BoxStore> stores;
  Groups<AsyncCopy> copies;
  size_t n_mmas = 0;                  // issued
  std::deque<size_t> committed_mmas;  // n_mmas at each commit
};
struct Block {
  dim3 index{0, 0, 0};
  int rank = 0, n_left = 0;
  const std::function<void()>* kernel = nullptr;
  int free_registers = 0;
  bool any = false;  // of block_barrier_or()
  uint8_t* shared = nullptr;
  std::vector<Thread*> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::map<uint32_t, Mbarrier> mbarriers;
  std::array<Meeting, 16> barriers;
};

// The cluster that runs now.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Turn> turns;                   // of the threads of all blocks
  std::vector<std::function<void()>> loads;  // copies to shared memory that are under way
  std::vector<WordStore> word_stores;        // stores that no thread sees yet
  Meeting meeting;
  unsigned round = 0;        // in each, every thread that may go on runs once
  unsigned last_due = 0;     // the last round that delayed work may wait for
  unsigned last_change = 0;  // the last round in which an mbarrier or a word changed
  dim3 blocks_of_grid;
  int n_threads = 0, shared_bytes = 0;        // of each block
  size_t stalled_begin = 0, stalled_end = 0;  // threads that do not run now
  Thread* self = nullptr;
  Context scheduler;
  std::mt19937 random{1};
};
extern Cluster g_cluster;
inline Thread& self() { return *g_cluster.self; }
inline Block& own_block() { return *g_cluster.self->block; }

// Unless `holds`, ends the process and prints `what` and the thread.
void require(bool holds, const char* what);

// A random round soon, for work that happens late.
unsigned later_round();

// Lets other threads run until may_go_on() holds.
void wait_until(std::function<bool()> may_go_on);
// Waits until n_threads have arrived.
void meet(Meeting& meeting, int n_threads);

// An operation of all lanes of a warp: the last lane to arrive calls perform(lanes), with what each
// lane has passed.
template <typename Lane, typename F>
void at_once(const char* what, Lane& lane, const F& perform) {
  Warp& warp = own_block().warps[static_cast<size_t>(self().index / kWarp)];
  require(warp.meeting.n_here == 0 || warp.what == what, "lanes of a warp do different things");
  warp.what = what;
  warp.lanes[static_cast<size_t>(self().index % kWarp)] = &lane;
  if (warp.meeting.n_here == kWarp - 1) {
    std::array<Lane*, kWarp> lanes;
    for (size_t i = 0; i < kWarp; ++i) lanes[i] = static_cast<Lane*>(warp.lanes[i]);
    perform(lanes);
  }
  meet(warp.meeting, kWarp);
}

// A block of the cluster, which must not have ended.
Block& block_of(int rank);
Mbarrier& mbarrier_at(Block& block, uint32_t address);
// Begins the next phase if no arrival and no byte is missing.
void settle(Mbarrier& barrier);

// Applies the swizzle of 128 or 64 bytes to an address in shared memory.
inline uint32_t swizzled(uint32_t address, int n_bytes) {
  return address ^ ((address >> 3) & (n_bytes == 128 ? 0x70u : 0x30u));
}

}  // namespace minfer::emulated
