#include "tests/kernels/cuda/emulated/cluster.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace minfer::emulated {
namespace {

constexpr size_t kStackBytes = 32 << 10;  // 15 KB were the most that a thread used
constexpr uint64_t kEndOfStack = 0x5ca1ab1e0ddba11;
constexpr int kAllSharedBytes = kMaxSharedBytes + kStaticSharedBytes;  // dynamic, then static
constexpr int kRegisters = 64 << 10;  // of an SM, which runs one block

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};

// swapcontext would make a system call for the signal mask each time: half of the time of a test.
void switch_context(Context& from, Context& to) {
  from.has_place = true;
  if (_setjmp(from.place) != 0) return;
  if (to.has_place) _longjmp(to.place, 1);
  setcontext(&to.start);
}

// Runs one kernel after the other: a thread that has ended is that of a later cluster too.
void enter_thread() {
  for (;;) {
    (*own_block().kernel)();
    uint64_t end;
    std::memcpy(&end, self().context.start.uc_stack.ss_sp, sizeof end);
    require(end == kEndOfStack, "a thread with more on its stack than there is room for");
    require(self().stores.are_done() && self().copies.are_done(),
            "a thread ends with copies under way");
    self().turn->is_done = true;
    switch_context(self().context, g_cluster.scheduler);
  }
}

// A stack for as long as the process runs. Thousands of threads take turns, and each is at the top
// of its own: so tops lie in huge pages, or each would take a page of the TLB, and not at the same
// place of a page, or all would share a few lines of the cache. Both together took a quarter from
// the time of tests of the persistent step and of GEMV.
stack_t make_stack() {
  constexpr size_t kHugePage = 2 << 20, kAtOnce = 8 * kHugePage;
  static uint8_t* memory = nullptr;
  static size_t n_left = 0, n_made = 0;
  if (n_left < kStackBytes) {
    memory = static_cast<uint8_t*>(std::aligned_alloc(kHugePage, kAtOnce));
    require(memory != nullptr, "no memory for stacks");
    madvise(memory, kAtOnce, MADV_HUGEPAGE);  // where there are none, tests are slower
    n_left = kAtOnce;
  }
  std::memcpy(memory, &kEndOfStack, sizeof kEndOfStack);
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = kStackBytes - n_made++ % 61 * 64;
  memory += kStackBytes;
  n_left -= kStackBytes;
  return stack;
}

std::unique_ptr<Thread> make_thread() {
  auto thread = std::make_unique<Thread>();
  getcontext(&thread->context.start);
  thread->context.start.uc_stack = make_stack();
  makecontext(&thread->context.start, enter_thread, 0);
  return thread;
}
void begin_thread(Thread& thread, Turn& turn, Block& block, int index, int n_registers) {
  thread.block = &block;
  thread.turn = &turn;
  thread.index = index;
  thread.n_registers = n_registers;
  thread.stores = {};
  thread.copies = {};
  thread.n_mmas = 0;
  thread.committed_mmas.clear();
  const unsigned begin = later_round();
  thread.may_go_on = [begin] { return g_cluster.round >= begin; };
}
// Threads are kept for the next cluster, as is the shared memory of a block.
std::unique_ptr<Block> make_block(const Grid& grid, int index, int rank) {
  static std::vector<std::unique_ptr<uint8_t, FreeMemory>> memories;
  static std::vector<std::unique_ptr<Thread>> threads;
  auto block = std::make_unique<Block>();
  const auto at = static_cast<size_t>(rank), n = static_cast<size_t>(grid.n_threads);
  while (memories.size() <= at) {
    memories.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(1024, kAllSharedBytes)));
  }
  const auto i_block = static_cast<unsigned>(index);
  const dim3 of_grid = grid.blocks;
  block->index = {i_block % of_grid.x, i_block / of_grid.x % of_grid.y,
                  i_block / of_grid.x / of_grid.y};
  block->rank = rank;
  block->kernel = &grid.kernel;
  block->n_left = grid.n_threads;
  block->shared = memories[at].get();
  std::memset(block->shared, 0xFF, kAllSharedBytes);
  block->warps.resize(n / kWarp);
  block->warpgroups.resize((n + kWarpgroup - 1) / kWarpgroup);
  while (threads.size() < (at + 1) * n) threads.push_back(make_thread());
  const int n_registers = std::min(kRegisters / grid.n_threads / 8 * 8, 248);
  for (size_t i = 0; i < n; ++i) {
    block->threads.push_back(threads[at * n + i].get());
    begin_thread(*block->threads.back(), g_cluster.turns.at(at * n + i), *block,
                 static_cast<int>(i), n_registers);
  }
  return block;
}

// Chooses a thread, a warp or a block that does not run for many rounds.
void stall_some(size_t n_threads) {
  const size_t sizes[] = {1, kWarp, static_cast<size_t>(g_cluster.n_threads)};
  const size_t size = sizes[g_cluster.random() % std::size(sizes)];
  g_cluster.stalled_begin = g_cluster.random() % (n_threads / size) * size;
  g_cluster.stalled_end = g_cluster.stalled_begin + size;
}

// Runs each thread that may go on once. Returns whether there was one.
bool run_round(const std::vector<Thread*>& threads) {
  if (g_cluster.round % 128 == 0 && g_cluster.random() % 2 == 0) stall_some(threads.size());
  constexpr size_t kSteps[] = {1, 5, 7, 11, 131, 383};
  size_t at = g_cluster.random() % threads.size();
  size_t step = kSteps[g_cluster.random() % std::size(kSteps)] % threads.size();
  if (std::gcd(step, threads.size()) != 1) step = 1;  // or some threads would not run
  bool moved = false;
  for (size_t i = 0; i < threads.size(); ++i) {
    at += step;
    if (at >= threads.size()) at -= threads.size();
    if (at >= g_cluster.stalled_begin && at < g_cluster.stalled_end) continue;
    Turn& turn = g_cluster.turns[at];
    if (turn.is_done || (turn.meeting && turn.meeting->round == turn.round)) continue;
    Thread* const thread = threads[at];
    if (thread->may_go_on && !thread->may_go_on()) continue;
    turn.meeting = nullptr;
    thread->may_go_on = nullptr;
    g_cluster.self = thread;
    switch_context(g_cluster.scheduler, thread->context);
    if (turn.is_done) --thread->block->n_left;
    moved = true;
  }
  g_cluster.self = nullptr;
  ++g_cluster.round;
  if (!moved && g_cluster.stalled_end != 0) {
    g_cluster.stalled_begin = g_cluster.stalled_end = 0;
    return true;
  }
  return moved;
}

// Makes some stores visible, at least one if `must_land`. Stores to one word keep their order.
void land_word_stores(bool must_land) {
  auto& stores = g_cluster.word_stores;
  for (; !stores.empty() && (must_land || g_cluster.random() % 16 != 0); must_land = false) {
    uint4* const to = stores[g_cluster.random() % stores.size()].to;
    const auto first = std::find_if(stores.begin(), stores.end(),
                                    [to](const WordStore& store) { return store.to == to; });
    *to = first->word;
    stores.erase(first);
    g_cluster.last_change = g_cluster.round;
  }
}

void land_load() {
  std::swap(g_cluster.loads[g_cluster.random() % g_cluster.loads.size()], g_cluster.loads.back());
  const auto load = std::move(g_cluster.loads.back());
  g_cluster.loads.pop_back();
  load();
}

void run_cluster() {
  std::vector<Thread*> threads;
  for (const auto& block : g_cluster.blocks) {
    threads.insert(threads.end(), block->threads.begin(), block->threads.end());
  }
  const auto is_done = [](const Turn& turn) { return turn.is_done; };
  const bool loads_are_late = g_cluster.random() % 2 != 0;
  while (!std::all_of(g_cluster.turns.begin(), g_cluster.turns.end(), is_done)) {
    const bool moved = run_round(threads) || g_cluster.round <= g_cluster.last_due;
    require(moved || !g_cluster.loads.empty() || !g_cluster.word_stores.empty(),
            "all threads wait");
    land_word_stores(!moved);
    if (moved && loads_are_late && g_cluster.random() % 3 != 0) continue;
    for (size_t n = (g_cluster.loads.size() + 7) / 8; n > 0; --n) land_load();
  }
  while (!g_cluster.word_stores.empty()) land_word_stores(/*must_land=*/true);
  require(g_cluster.loads.empty(), "a block ends with loads under way");
  for (const auto& block : g_cluster.blocks) {
    for (const Warpgroup& warpgroup : block->warpgroups) {
      require(warpgroup.mmas.empty(), "a block ends with mma instructions under way");
    }
  }
}

}  // namespace

Cluster g_cluster;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "emulated kernel: %s", what);
  if (const Thread* const thread = g_cluster.self) {
    const dim3 block = thread->block->index;
    std::fprintf(stderr, "; block %u %u %u, thread %d", block.x, block.y, block.z, thread->index);
  }
  std::fputc('\n', stderr);
  std::abort();
}

unsigned later_round() {
  const unsigned round = g_cluster.round + g_cluster.random() % 8;
  g_cluster.last_due = std::max(g_cluster.last_due, round);
  return round;
}

void wait_until(std::function<bool()> may_go_on) {
  if (g_cluster.random() % 4 != 0 && may_go_on()) return;  // sometimes others go first anyway
  self().may_go_on = std::move(may_go_on);
  switch_context(self().context, g_cluster.scheduler);
}

// Arrives, and returns whether this thread is the last of n_threads.
static bool arrive(Meeting& meeting, int n_threads) {
  require(meeting.n_here < n_threads, "more threads at a barrier than it counts");
  if (++meeting.n_here < n_threads) return false;
  meeting.n_here = 0;
  ++meeting.round;
  return true;
}
void meet(Meeting& meeting, int n_threads) {
  const unsigned round = meeting.round;
  if (arrive(meeting, n_threads)) return;
  self().turn->meeting = &meeting;
  self().turn->round = round;
  switch_context(self().context, g_cluster.scheduler);
}

Block& block_of(int rank) {
  Block& block = *g_cluster.blocks.at(static_cast<size_t>(rank));
  require(block.n_left > 0, "shared memory of a block that has ended");
  return block;
}
Mbarrier& mbarrier_at(Block& block, uint32_t address) {
  const auto found = block.mbarriers.find(address);
  require(found != block.mbarriers.end(), "an mbarrier that was not initialized");
  return found->second;
}
void settle(Mbarrier& barrier) {
  g_cluster.last_change = g_cluster.round;
  require(barrier.missing >= 0, "more arrivals at an mbarrier than it counts");
  if (barrier.missing > 0 || barrier.bytes_missing != 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
}

void begin_launch(const Grid& grid) {
  require(grid.n_blocks() % grid.cluster == 0 && grid.n_threads % kWarp == 0 &&
              grid.shared_bytes <= kMaxSharedBytes,
          "a launch that no card takes");
  g_cluster.blocks_of_grid = grid.blocks;
  g_cluster.n_threads = grid.n_threads;
  g_cluster.shared_bytes = grid.shared_bytes;
}
void begin_cluster(size_t n_blocks) {
  g_cluster.blocks.clear();
  g_cluster.turns.assign(n_blocks * static_cast<size_t>(g_cluster.n_threads), {});
  g_cluster.meeting = {};
  g_cluster.last_change = g_cluster.round;
}

void run(const Grid& grid) {
  begin_launch(grid);
  for (int first = 0; first < grid.n_blocks(); first += grid.cluster) {
    begin_cluster(static_cast<size_t>(grid.cluster));
    for (int rank = 0; rank < grid.cluster; ++rank) {
      g_cluster.blocks.push_back(make_block(grid, first + rank, rank));
    }
    run_cluster();
  }
}

void run_together(const std::vector<Grid>& grids) {
  begin_launch(grids.front());
  begin_cluster(grids.size() * static_cast<size_t>(grids.front().n_blocks()));
  for (const Grid& grid : grids) {
    require(grid.is_cooperative && grid.n_blocks() == grids.front().n_blocks() &&
                grid.n_threads == g_cluster.n_threads,
            "launches that do not run together");
    g_cluster.shared_bytes = std::max(g_cluster.shared_bytes, grid.shared_bytes);
    for (int index = 0; index < grid.n_blocks(); ++index) {
      const int rank = static_cast<int>(g_cluster.blocks.size());
      g_cluster.blocks.push_back(make_block(grid, index, rank));
    }
  }
  run_cluster();
}

int thread_index() { return self().index; }
dim3 block_index() { return own_block().index; }
dim3 n_blocks() { return g_cluster.blocks_of_grid; }
int n_threads() { return g_cluster.n_threads; }
int cluster_rank() { return own_block().rank; }

uint8_t* dynamic_shared() { return own_block().shared; }
uint8_t* static_shared(int n_bytes) {
  require(n_bytes <= kStaticSharedBytes, "more static shared memory than there is");
  return own_block().shared + kMaxSharedBytes;
}
uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const uint8_t*>(p) - own_block().shared;
  require((offset >= 0 && offset < g_cluster.shared_bytes) ||
              (offset >= kMaxSharedBytes && offset < kAllSharedBytes),
          "not an address in shared memory");
  return static_cast<uint32_t>(offset);
}
uint32_t shared_address_in(const void* p, int rank) {
  static_assert(kAllSharedBytes < 1 << 24);
  return shared_address(p) | static_cast<uint32_t>(rank) << 24;
}
float load_cluster(uint32_t address) {
  float value;
  std::memcpy(&value, block_of(static_cast<int>(address >> 24)).shared + (address & 0xFFFFFF),
              sizeof value);
  return value;
}

void set_registers(int n, bool grows) {
  Block& block = own_block();
  const int more = n - self().n_registers;
  require(n % 8 == 0 && n >= 24 && n <= 256 && (grows ? more >= 0 : more <= 0),
          "as many registers as no thread may ask for here");
  wait_until([&block, more] { return block.free_registers >= more; });
  block.free_registers -= more;
  self().n_registers = n;
}

void block_barrier() {
  meet(own_block().barriers[0], static_cast<int>(std::ssize(own_block().threads)));
}
bool block_barrier_or(bool condition) {
  Block& block = own_block();
  if (condition) block.any = true;
  block_barrier();
  const bool any = block.any;
  block_barrier();
  if (self().index == 0) block.any = false;
  block_barrier();
  return any;
}
static Meeting& named(int id) {
  require(id >= 1 && id < 16, "a barrier of another number than 1 to 15");
  return own_block().barriers[static_cast<size_t>(id)];
}
void named_barrier(int id, int n_threads) { meet(named(id), n_threads); }
void named_barrier_arrive(int id, int n_threads) { arrive(named(id), n_threads); }
void cluster_barrier() {
  meet(g_cluster.meeting,
       static_cast<int>(std::ssize(g_cluster.blocks) * std::ssize(own_block().threads)));
}
void warp_barrier() {
  int nothing = 0;
  at_once("barrier", nothing, [](const auto&) {});
}

void mbarrier_init(uint64_t* barrier, int arrivals) {
  own_block().mbarriers[shared_address(barrier)] = {.arrivals = arrivals, .missing = arrivals};
}
void mbarrier_expect(uint64_t* barrier, int bytes) {
  Mbarrier& expecting = mbarrier_at(own_block(), shared_address(barrier));
  expecting.bytes_missing += bytes;
  --expecting.missing;
  settle(expecting);
}
void mbarrier_arrive(uint64_t* barrier) { mbarrier_arrive_in(barrier, own_block().rank); }
void mbarrier_arrive_in(uint64_t* barrier, int rank) {
  Mbarrier& there = mbarrier_at(block_of(rank), shared_address(barrier));
  --there.missing;
  settle(there);
}
void mbarrier_wait(uint64_t* barrier, int parity) {
  const Mbarrier& awaited = mbarrier_at(own_block(), shared_address(barrier));
  wait_until([&awaited, parity] { return static_cast<int>(awaited.phase % 2) != parity; });
}
bool mbarrier_is_complete(uint32_t barrier, int parity) {
  return static_cast<int>(mbarrier_at(own_block(), barrier).phase % 2) != parity;
}

void before_next_try() {
  constexpr unsigned kPatience = 10000;  // rounds
  require(g_cluster.round - g_cluster.last_change < kPatience, "a wait that never ends");
  switch_context(self().context, g_cluster.scheduler);
}
void store_word(uint4* to, const uint4& word) { g_cluster.word_stores.push_back({to, word}); }

}  // namespace minfer::emulated
