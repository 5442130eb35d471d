#include "tests/kernels/cuda/emulated/emulator.h"

#include <ucontext.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "kernels/base/half.h"

namespace minfer::emulated {
namespace {

constexpr int kSharedBytes = 228 << 10;
constexpr size_t kStackBytes = 160 << 10;
constexpr int kWarp = 32, kWarpgroup = 128;

struct Meeting {  // of a barrier
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
  int x, y;
  std::vector<int> ranks;
};
struct AsyncCopy {
  void* to;
  const void* from;
  size_t n_bytes, n_zeros;
};
// What a thread starts, in groups that it commits and waits for.
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
struct WarpgroupProduct {
  std::array<float*, kWarpgroup> d;
  int n_threads = 0;  // that have asked for it
  int n_sums = 0;
  uint64_t a = 0, b = 0;
  bool accumulate = false;
  Half type = Half::F16;
};
struct Warpgroup {
  std::deque<WarpgroupProduct> products;  // not done yet
  size_t n_done = 0;
};
struct Warp {
  Meeting meeting;
  const char* what = nullptr;  // its lanes meet for
  std::array<void*, kWarp> lanes;
};

struct Block;
struct Thread {
  ucontext_t context;
  Block* block = nullptr;
  int index = 0;
  bool is_done = false;
  std::function<bool()> may_go_on;  // null: it may
  Groups<BoxStore> stores;
  Groups<AsyncCopy> copies;
  size_t n_products = 0;                // asked for
  std::deque<size_t> committed_products;  // their number at each commit
};
struct Block {
  int index = 0, rank = 0, n_left = 0;
  uint8_t* shared = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::map<uint32_t, Mbarrier> mbarriers;
  std::array<Meeting, 16> barriers;
};

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};

// The cluster that runs.
std::vector<std::unique_ptr<Block>> g_blocks;
std::vector<BoxLoad> g_loads;
Meeting g_meeting;
int g_n_blocks = 0;
Thread* g_self = nullptr;
ucontext_t g_scheduler;
const std::function<void()>* g_kernel = nullptr;
std::mt19937 g_random(1);

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s; block %d, thread %d\n", what,
               g_self ? g_self->block->index : -1, g_self ? g_self->index : -1);
  std::abort();
}
void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

void wait_until(std::function<bool()> may_go_on) {
  if (g_random() % 4 != 0 && may_go_on()) return;  // at times others go first all the same
  g_self->may_go_on = std::move(may_go_on);
  swapcontext(&g_self->context, &g_scheduler);
}

void meet(Meeting& meeting, int n_threads) {
  require(meeting.n_here < n_threads, "more threads at a barrier than it counts");
  const unsigned round = meeting.round;
  if (++meeting.n_here == n_threads) {
    meeting.n_here = 0;
    ++meeting.round;
  } else {
    wait_until([&meeting, round] { return meeting.round != round; });
  }
}

// What the lanes of a warp do at once: perform(lanes), by the last one, with what each has brought.
template <typename Lane, typename F>
void at_once(const char* what, Lane& lane, const F& perform) {
  Warp& warp = g_self->block->warps[static_cast<size_t>(g_self->index / kWarp)];
  Meeting& meeting = warp.meeting;
  require(meeting.n_here == 0 || warp.what == what, "lanes of a warp do different things");
  warp.what = what;
  warp.lanes[static_cast<size_t>(g_self->index % kWarp)] = &lane;
  if (meeting.n_here == kWarp - 1) {
    std::array<Lane*, kWarp> lanes;
    for (size_t i = 0; i < kWarp; ++i) lanes[i] = static_cast<Lane*>(warp.lanes[i]);
    perform(lanes);
  }
  meet(meeting, kWarp);
}

Block& block_of(int rank) {
  Block& block = *g_blocks.at(static_cast<size_t>(rank));
  require(block.n_left > 0, "shared memory of a block that has ended");
  return block;
}
Mbarrier& mbarrier_at(Block& block, uint32_t address) {
  const auto found = block.mbarriers.find(address);
  require(found != block.mbarriers.end(), "an mbarrier that was not initialized");
  return found->second;
}
void settle(Mbarrier& barrier) {
  require(barrier.missing >= 0, "more arrivals at an mbarrier than it counts");
  if (barrier.missing > 0 || barrier.bytes_missing != 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
}

uint32_t swizzled(uint32_t address, int n_bytes) {
  return address ^ ((address >> 3) & (n_bytes == 128 ? 0x70u : 0x30u));
}

TensorMap unpack(const CUtensorMap* packed) {
  TensorMap map;
  std::memcpy(&map, packed, sizeof map);
  require(map.data != nullptr, "a tensor map that was not made");
  return map;
}
// visit(element, or null outside of the tensor; its address in shared memory)
template <typename F>
void for_box(const TensorMap& map, int x, int y, int z, uint32_t shared, const F& visit) {
  for (int row = 0; row < map.box[1]; ++row) {
    for (int column = 0; column < map.box[0]; ++column) {
      const int64_t at[] = {x + column, y + row, z};
      bool is_there = true;
      for (int i = 0; i < map.rank; ++i) is_there &= at[i] >= 0 && at[i] < map.extents[i];
      int64_t offset = at[0] * map.element_bytes;
      for (int i = 1; i < map.rank; ++i) offset += at[i] * map.strides[i - 1];
      const int place = (row * map.box[0] + column) * map.element_bytes;
      visit(is_there ? map.data + offset : nullptr,
            swizzled(shared + static_cast<uint32_t>(place), map.swizzle_bytes));
    }
  }
}
void perform(const BoxLoad& load) {
  const auto n_bytes = static_cast<size_t>(load.map.element_bytes);
  for (const int rank : load.ranks) {
    Block& block = block_of(rank);
    for_box(load.map, load.x, load.y, 0, load.to, [&](const uint8_t* from, uint32_t to) {
      from ? std::memcpy(block.shared + to, from, n_bytes)
           : std::memset(block.shared + to, 0, n_bytes);
    });
    Mbarrier& barrier = mbarrier_at(block, load.barrier);
    barrier.bytes_missing -= load.map.box[0] * load.map.box[1] * load.map.element_bytes;
    settle(barrier);
  }
}
void perform(const BoxStore& store) {
  const uint8_t* const shared = g_self->block->shared;
  for_box(store.map, store.x, store.y, store.z, store.from, [&](uint8_t* to, uint32_t from) {
    if (to == nullptr) return;
    if (store.how == Write::Store) {
      std::memcpy(to, shared + from, static_cast<size_t>(store.map.element_bytes));
    } else {
      float sum, more;
      std::memcpy(&sum, to, sizeof sum);
      std::memcpy(&more, shared + from, sizeof more);
      sum += more;
      std::memcpy(to, &sum, sizeof sum);
    }
  });
}

float to_float(uint16_t bits, Half type) {
  return type == Half::F16 ? to_f32(std::bit_cast<f16>(bits)) : to_f32(std::bit_cast<bf16>(bits));
}
float half_of(uint32_t pair, int i, Half type) {
  return to_float(static_cast<uint16_t>(pair >> (16 * i)), type);
}

void perform(const Block& block, const WarpgroupProduct& product) {
  constexpr int kRows = 64, kDepth = 16, kMaxColumns = 256;
  static float a[kRows][kDepth], b[kDepth][kMaxColumns], sums[kRows][kMaxColumns];
  const int n_columns = product.n_sums * 2;
  const auto element = [&](uint64_t tile, int row, int column) {
    const auto address = static_cast<uint32_t>(tile * 16) + static_cast<uint32_t>(row * 128 + column * 2);
    uint16_t bits;
    std::memcpy(&bits, block.shared + swizzled(address, 128), sizeof bits);
    return to_float(bits, product.type);
  };
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kRows; ++row) a[row][k] = element(product.a, row, k);
    for (int column = 0; column < n_columns; ++column) b[k][column] = element(product.b, column, k);
  }
  for (int row = 0; row < kRows; ++row) {
    std::fill_n(sums[row], n_columns, 0.0f);
    for (int k = 0; k < kDepth; ++k) {
      for (int column = 0; column < n_columns; ++column) {
        sums[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    const int warp = thread / kWarp, lane = thread % kWarp;
    for (int i = 0; i < product.n_sums; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float& sum = product.d[static_cast<size_t>(thread)][i];
      sum = (product.accumulate ? sum : 0) + sums[row][column];
    }
  }
}

Warpgroup& own_warpgroup() {
  return g_self->block->warpgroups[static_cast<size_t>(g_self->index / kWarpgroup)];
}

void enter_thread() {
  (*g_kernel)();
  require(g_self->stores.are_done() && g_self->copies.are_done(),
          "a thread ends with copies under way");
  g_self->is_done = true;
  swapcontext(&g_self->context, &g_scheduler);
}

// On a stack that is kept for the next cluster, as is the shared memory of a block.
std::unique_ptr<Thread> make_thread(Block& block, int index, std::vector<uint8_t>& stack) {
  auto thread = std::make_unique<Thread>();
  thread->block = &block;
  thread->index = index;
  getcontext(&thread->context);
  thread->context.uc_stack.ss_sp = stack.data();
  thread->context.uc_stack.ss_size = stack.size();
  makecontext(&thread->context, enter_thread, 0);
  return thread;
}
std::unique_ptr<Block> make_block(int index, int rank, int n_threads) {
  static std::vector<std::unique_ptr<uint8_t, FreeMemory>> memories;
  static std::vector<std::vector<uint8_t>> stacks;
  auto block = std::make_unique<Block>();
  const auto at = static_cast<size_t>(rank), n = static_cast<size_t>(n_threads);
  while (memories.size() <= at) {
    memories.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(1024, kSharedBytes)));
  }
  block->index = index;
  block->rank = rank;
  block->n_left = n_threads;
  block->shared = memories[at].get();
  std::memset(block->shared, 0xFF, kSharedBytes);
  block->warps.resize(n / kWarp);
  block->warpgroups.resize((n + kWarpgroup - 1) / kWarpgroup);
  while (stacks.size() < (at + 1) * n) stacks.emplace_back(kStackBytes);
  for (size_t i = 0; i < n; ++i) {
    block->threads.push_back(make_thread(*block, static_cast<int>(i), stacks[at * n + i]));
  }
  return block;
}

// A turn for each thread that may go on. Returns whether there was one.
bool run_round(const std::vector<Thread*>& threads) {
  constexpr size_t kSteps[] = {1, 5, 7, 11, 131, 383};  // without a factor of their number
  const size_t first = g_random() % threads.size(), step = kSteps[g_random() % std::size(kSteps)];
  bool moved = false;
  for (size_t i = 0; i < threads.size(); ++i) {
    Thread* const thread = threads[(first + i * step) % threads.size()];
    if (thread->is_done || (thread->may_go_on && !thread->may_go_on())) continue;
    thread->may_go_on = nullptr;
    g_self = thread;
    swapcontext(&g_scheduler, &thread->context);
    if (thread->is_done) --thread->block->n_left;
    moved = true;
  }
  g_self = nullptr;
  return moved;
}

void run_cluster() {
  std::vector<Thread*> threads;
  for (const auto& block : g_blocks) {
    for (const auto& thread : block->threads) threads.push_back(thread.get());
  }
  const auto is_done = [](const Thread* thread) { return thread->is_done; };
  const bool loads_are_late = g_random() % 2 != 0;
  while (!std::all_of(threads.begin(), threads.end(), is_done)) {
    const bool moved = run_round(threads);
    require(moved || !g_loads.empty(), "all threads wait");
    if (g_loads.empty() || (moved && loads_are_late && g_random() % 3 != 0)) continue;
    std::swap(g_loads[g_random() % g_loads.size()], g_loads.back());
    const BoxLoad load = g_loads.back();
    g_loads.pop_back();
    perform(load);
  }
  require(g_loads.empty(), "a block ends with loads under way");
  for (const auto& block : g_blocks) {
    for (const Warpgroup& warpgroup : block->warpgroups) {
      require(warpgroup.products.empty(), "a block ends with products under way");
    }
  }
}

}  // namespace

void run(int n_blocks, int n_threads, int cluster, const std::function<void()>& kernel) {
  require(n_blocks % cluster == 0 && n_threads % kWarp == 0, "a grid that no card takes");
  g_n_blocks = n_blocks;
  g_kernel = &kernel;
  for (int first = 0; first < n_blocks; first += cluster) {
    g_blocks.clear();
    g_meeting = {};
    for (int rank = 0; rank < cluster; ++rank) {
      g_blocks.push_back(make_block(first + rank, rank, n_threads));
    }
    run_cluster();
  }
}

CUtensorMap pack(const TensorMap& map) {
  static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
  require(reinterpret_cast<uintptr_t>(map.data) % 16 == 0, "a tensor map of data anywhere");
  for (int i = 1; i < map.rank; ++i) {
    require(map.strides[i - 1] % 16 == 0, "a tensor map of rows that are no whole 16 bytes");
  }
  CUtensorMap packed{};
  std::memcpy(&packed, &map, sizeof map);
  return packed;
}

int thread_index() { return g_self->index; }
int block_index() { return g_self->block->index; }
int n_blocks() { return g_n_blocks; }
int cluster_rank() { return g_self->block->rank; }

uint8_t* dynamic_shared() { return g_self->block->shared; }
uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const uint8_t*>(p) - g_self->block->shared;
  require(offset >= 0 && offset < kSharedBytes, "not an address in shared memory");
  return static_cast<uint32_t>(offset);
}
uint32_t shared_address_in(const void* p, int rank) {
  static_assert(kSharedBytes < 1 << 24);
  return shared_address(p) | static_cast<uint32_t>(rank) << 24;
}
float load_cluster(uint32_t address) {
  float value;
  std::memcpy(&value, block_of(static_cast<int>(address >> 24)).shared + (address & 0xFFFFFF),
              sizeof value);
  return value;
}

void block_barrier() {
  meet(g_self->block->barriers[0], static_cast<int>(std::ssize(g_self->block->threads)));
}
void named_barrier(int id, int n_threads) {
  require(id >= 1 && id < 16, "a barrier of another number than 1 to 15");
  meet(g_self->block->barriers[static_cast<size_t>(id)], n_threads);
}
void cluster_barrier() {
  meet(g_meeting, static_cast<int>(std::ssize(g_blocks) * std::ssize(g_self->block->threads)));
}
void warp_barrier() {
  int nothing = 0;
  at_once("barrier", nothing, [](const auto&) {});
}

void mbarrier_init(uint64_t* barrier, int arrivals) {
  g_self->block->mbarriers[shared_address(barrier)] = {.arrivals = arrivals, .missing = arrivals};
}
void mbarrier_expect(uint64_t* barrier, int bytes) {
  Mbarrier& expecting = mbarrier_at(*g_self->block, shared_address(barrier));
  expecting.bytes_missing += bytes;
  --expecting.missing;
  settle(expecting);
}
void mbarrier_arrive(uint64_t* barrier) { mbarrier_arrive_in(barrier, g_self->block->rank); }
void mbarrier_arrive_in(uint64_t* barrier, int rank) {
  Mbarrier& there = mbarrier_at(block_of(rank), shared_address(barrier));
  --there.missing;
  settle(there);
}
void mbarrier_wait(uint64_t* barrier, int parity) {
  const Mbarrier& awaited = mbarrier_at(*g_self->block, shared_address(barrier));
  wait_until([&awaited, parity] { return static_cast<int>(awaited.phase % 2) != parity; });
}

void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                 bool to_both) {
  require(shared_address(to_shared) % 128 == 0, "a box that does not begin at 128 bytes");
  g_loads.push_back({unpack(map), shared_address(to_shared), shared_address(barrier), x, y,
                     to_both ? std::vector{0, 1} : std::vector{g_self->block->rank}});
}
void tensor_store(const CUtensorMap* map, const void* shared, int x, int y, int z, Write how) {
  require(shared_address(shared) % 128 == 0, "a box that does not begin at 128 bytes");
  g_self->stores.open.push_back({unpack(map), shared_address(shared), x, y, z, how});
}
void bulk_commit() { g_self->stores.commit(); }
void bulk_wait(int pending) {
  g_self->stores.wait(pending, [](const BoxStore& store) { perform(store); });
}

void copy_async(void* to_shared, const void* from, int n_bytes, int n_zeros) {
  g_self->copies.open.push_back(
      {to_shared, from, static_cast<size_t>(n_bytes), static_cast<size_t>(n_zeros)});
}
void copy_async_commit() { g_self->copies.commit(); }
void copy_async_wait(int pending) {
  g_self->copies.wait(pending, [](const AsyncCopy& copy) {
    std::memcpy(copy.to, copy.from, copy.n_bytes);
    std::memset(static_cast<uint8_t*>(copy.to) + copy.n_bytes, 0, copy.n_zeros);
  });
}

void store_matrices(void* row, const uint32_t* values, int n, bool transposed) {
  struct Lane {
    void* row;
    const uint32_t* values;
  } lane{row, values};
  at_once("store_matrices", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    for (size_t i = 0; i < kWarp; ++i) {
      for (int pair = 0; pair < n * 2; ++pair) {
        const int matrix = pair / 2, half = pair % 2;
        const int from_row = static_cast<int>(i) / 4, from_column = static_cast<int>(i) % 4 * 2 + half;
        const int to_row = transposed ? from_column : from_row;
        const int to_column = transposed ? from_row : from_column;
        const auto bits = static_cast<uint16_t>(lanes[i]->values[matrix] >> (16 * half));
        auto* const to = static_cast<uint8_t*>(lanes[static_cast<size_t>(matrix * 8 + to_row)]->row);
        std::memcpy(to + to_column * 2, &bits, sizeof bits);
      }
    }
  });
}
void load_matrices(const void* row, uint32_t* values, int n) {
  struct Lane {
    const void* row;
    uint32_t* values;
  } lane{row, values};
  at_once("load_matrices", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    for (size_t i = 0; i < kWarp; ++i) {
      for (int matrix = 0; matrix < n; ++matrix) {
        const auto* const from = static_cast<const uint8_t*>(
            lanes[static_cast<size_t>(matrix) * 8 + i / 4]->row);
        std::memcpy(lanes[i]->values + matrix, from + i % 4 * 4, 4);
      }
    }
  });
}

void multiply_16x8x16(float* d, const uint32_t* a, const uint32_t* b, Half type) {
  struct Lane {
    float* d;
    const uint32_t *a, *b;
  } lane{d, a, b};
  at_once("multiply", lane, [&](const std::array<Lane*, kWarp>& lanes) {
    for (size_t i = 0; i < kWarp; ++i) {
      for (size_t sum = 0; sum < 4; ++sum) {
        const size_t row = i / 4 + sum / 2 * 8, column = i % 4 * 2 + sum % 2;
        for (size_t k = 0; k < 16; ++k) {
          const size_t holder = k % 8 / 2;  // of its four lanes, in a as in b
          const uint32_t x = lanes[row % 8 * 4 + holder]->a[row / 8 + k / 8 * 2];
          const uint32_t w = lanes[column * 4 + holder]->b[k / 8];
          const int half = static_cast<int>(k % 2);
          lanes[i]->d[sum] += half_of(x, half, type) * half_of(w, half, type);
        }
      }
    }
  });
}

void wgmma(float* d, int n_sums, uint64_t a, uint64_t b, bool accumulate, Half type) {
  Warpgroup& warpgroup = own_warpgroup();
  const size_t at = g_self->n_products++ - warpgroup.n_done;
  if (warpgroup.products.size() == at) warpgroup.products.emplace_back();
  WarpgroupProduct& product = warpgroup.products.at(at);
  if (product.n_threads == 0) {
    product.n_sums = n_sums;
    product.a = a;
    product.b = b;
    product.accumulate = accumulate;
    product.type = type;
  }
  require(product.n_sums == n_sums && product.a == a && product.b == b &&
              product.accumulate == accumulate && product.type == type,
          "threads of a warpgroup ask for different products");
  product.d[static_cast<size_t>(g_self->index % kWarpgroup)] = d;
  ++product.n_threads;
}
void wgmma_commit() { g_self->committed_products.push_back(g_self->n_products); }
void wgmma_wait(int pending) {
  size_t n_due = 0;
  auto& committed = g_self->committed_products;
  for (; std::ssize(committed) > pending; committed.pop_front()) n_due = committed.front();
  Warpgroup& warpgroup = own_warpgroup();
  const auto is_left = [&warpgroup, n_due] { return warpgroup.n_done < n_due; };
  wait_until([&warpgroup, n_due, is_left] {
    if (!is_left()) return true;
    const size_t n = n_due - warpgroup.n_done;
    return warpgroup.products.size() >= n && warpgroup.products[n - 1].n_threads == kWarpgroup;
  });
  for (; is_left(); ++warpgroup.n_done) {
    perform(*g_self->block, warpgroup.products.front());
    warpgroup.products.pop_front();
  }
}

}  // namespace minfer::emulated
