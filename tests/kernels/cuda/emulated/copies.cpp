#include <cstring>

#include "tests/kernels/cuda/emulated/cluster.h"

namespace minfer::emulated {
namespace {

TensorMap unpack(const CUtensorMap* packed) {
  TensorMap map;
  std::memcpy(&map, packed, sizeof map);
  require(map.data != nullptr, "a tensor map that was not made");
  return map;
}
int box_bytes(const TensorMap& map) { return map.box[0] * map.box[1] * map.element_bytes; }
void require_box(const TensorMap& map, const void* shared) {
  const auto begin = static_cast<int>(shared_address(shared));
  require(begin % 128 == 0, "a box that does not begin at 128 bytes");
  require(begin + box_bytes(map) <= g_cluster.shared_bytes, "a box behind the shared memory");
}
// Calls visit(element, or null outside the tensor; its address in shared memory).
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
void perform(const BoxStore& store) {
  const uint8_t* const shared = own_block().shared;
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

void perform_copy(const AsyncCopy& copy) {
  std::memcpy(copy.to, copy.from, copy.n_bytes);
  std::memset(static_cast<uint8_t*>(copy.to) + copy.n_bytes, 0, copy.n_zeros);
}

void perform(const BoxLoad& load) {
  const auto n_bytes = static_cast<size_t>(load.map.element_bytes);
  for (const int rank : load.ranks) {
    Block& block = block_of(rank);
    for_box(load.map, load.x, load.y, load.z, load.to, [&](const uint8_t* from, uint32_t to) {
      from ? std::memcpy(block.shared + to, from, n_bytes)
           : std::memset(block.shared + to, 0, n_bytes);
    });
    Mbarrier& barrier = mbarrier_at(block, load.barrier);
    barrier.bytes_missing -= box_bytes(load.map);
    settle(barrier);
  }
}

bool are_whole_16(const void* from, int n_bytes) {
  return reinterpret_cast<uintptr_t>(from) % 16 == 0 && n_bytes % 16 == 0;
}

}  // namespace

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

void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z,
                 bool to_both) {
  const TensorMap unpacked = unpack(map);
  require_box(unpacked, to_shared);
  const BoxLoad load{unpacked,
                     shared_address(to_shared),
                     shared_address(barrier),
                     x,
                     y,
                     z,
                     to_both ? std::vector{0, 1} : std::vector{own_block().rank}};
  g_cluster.loads.push_back([load] { perform(load); });
}
void bulk_copy(void* to_shared, const void* from, int n_bytes, uint64_t* barrier) {
  const uint32_t to = shared_address(to_shared), at = shared_address(barrier);
  require(to % 16 == 0 && are_whole_16(from, n_bytes), "a bulk copy that is no whole 16 bytes");
  g_cluster.loads.push_back([=, rank = own_block().rank] {
    Block& block = block_of(rank);
    std::memcpy(block.shared + to, from, static_cast<size_t>(n_bytes));
    Mbarrier& counting = mbarrier_at(block, at);
    counting.bytes_missing -= n_bytes;
    settle(counting);
  });
}
void store_to_block(uint32_t to, const float (&x)[4], uint32_t barrier) {
  constexpr uint32_t kInBlock = 0xFFFFFF;
  require(to % sizeof x == 0 && to >> 24 == barrier >> 24, "a store to no whole 16 bytes");
  require((to & kInBlock) + sizeof x <= static_cast<size_t>(g_cluster.shared_bytes),
          "a store behind the shared memory");
  const std::array<float, 4> values{x[0], x[1], x[2], x[3]};
  g_cluster.loads.push_back([=] {
    Block& block = block_of(static_cast<int>(to >> 24));
    std::memcpy(block.shared + (to & kInBlock), values.data(), sizeof values);
    Mbarrier& counting = mbarrier_at(block, barrier & kInBlock);
    counting.bytes_missing -= int{sizeof values};
    settle(counting);
  });
}
void prefetch(const void* from, int n_bytes) {
  require(n_bytes > 0 && are_whole_16(from, n_bytes), "a prefetch that is no whole 16 bytes");
  const auto* const bytes = static_cast<const volatile uint8_t*>(from);
  static_cast<void>(bytes[0] + bytes[n_bytes - 1]);
}
void tensor_store(const CUtensorMap* map, const void* shared, int x, int y, int z, Write how) {
  const TensorMap unpacked = unpack(map);
  require_box(unpacked, shared);
  self().stores.open.push_back({unpacked, shared_address(shared), x, y, z, how});
}
void bulk_commit() { self().stores.commit(); }
void bulk_wait(int pending) {
  self().stores.wait(pending, [](const BoxStore& store) { perform(store); });
}

void copy_async(void* to_shared, const void* from, int n_bytes, int n_zeros) {
  self().copies.open.push_back(
      {to_shared, from, static_cast<size_t>(n_bytes), static_cast<size_t>(n_zeros)});
}
void copy_async_commit() { self().copies.commit(); }
void copy_async_wait(int pending) { self().copies.wait(pending, perform_copy); }
void copy_async_arrive(uint64_t* barrier) {
  std::vector<AsyncCopy> copies = std::move(self().copies.open);
  self().copies.open.clear();
  g_cluster.loads.push_back(
      [copies = std::move(copies), at = shared_address(barrier), rank = own_block().rank] {
        for (const AsyncCopy& copy : copies) perform_copy(copy);
        Mbarrier& counting = mbarrier_at(block_of(rank), at);
        --counting.missing;
        settle(counting);
      });
}

}  // namespace minfer::emulated
