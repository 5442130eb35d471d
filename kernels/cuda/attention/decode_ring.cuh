#pragma once

#include "kernels/cuda/attention/decode_rows.cuh"

// The ring through which a warp reads rows of the cache.
namespace minfer::cuda::attention {

// Warps of a block. A slot of a warp's ring has 4 KB, or 8 KB if rows are long.
constexpr int decode_warps(int kD) { return kD > 128 ? 4 : 8; }

// Shared memory for the rings of a block. With bulk copies (sm_90) it is 96 KB, so that two such
// blocks, or one and a block of a GEMV (gemv.cu), fit on an SM with 228 KB; else 64 KB, which every
// card has. Kernels with kMasked (windows, several rows of a sequence) have 64 KB: then a GEMV of
// several rows fits beside them, and eight rows of INT4 take 4 % less time.
constexpr int ring_bytes(bool is_sm90, bool is_masked = false) {
  return (is_sm90 && !is_masked ? 96 : 64) * 1024;
}

// What a warp reads: every kWarps-th tile of kRows positions in the block's range, begin to end
// - 1. Only positions below `readable` are read from the cache.
struct WarpRange {
  int begin, readable, end;
  // The warp begins at its turn-th tile, and takes those in front of it last. Heads and splits
  // often lie powers of two apart, so blocks in step would otherwise read the same places of all of
  // them.
  int warp, turn;
};

// A ring of one warp, which alone fills it and waits for it. Slots hold tiles of keys and of values
// in turns, brought by bulk copies: kSlots copies are in flight while the warp waits, one less
// while it computes. Below sm_90 the lanes copy (cp.async). Rows that are not a multiple of 16
// bytes go through registers, which is slow.
//
// The n-th take() waits for copy n, the next in the order keys, values, keys, ...; the refill()
// after it starts copy n + kSlots, into the same slot. Both are called 2 n_tiles() times. So each
// copy is waited for before its slot is filled again, and each wait is for a copy that was started.
template <int kD, bool kU8, bool kAligned, bool kMasked = false>
class CacheRing {
  using Tile = DecodeTile<kD, kU8>;  // kMasked or not: the rows are the same
  static constexpr int kRows = Tile::kRows, kUnits = Tile::kUnits;
#if __CUDA_ARCH__ >= 900
  static constexpr bool kIsSm90 = true;
#else
  static constexpr bool kIsSm90 = false;
#endif

 public:
  static constexpr int kWarps = decode_warps(kD);
  static constexpr int kWarpBytes = ring_bytes(kIsSm90, kMasked) / kWarps;

 private:
  static constexpr bool kBulk = kIsSm90 && kAligned, kInGroups = kU8 || !kBulk;
  static constexpr int kSlotBytes = kRows * kD * Tile::kElementBytes;
  static constexpr int kSlots = kWarpBytes / kSlotBytes, kTiles = (kSlots + 1) / 2;
  static_assert(kSlots >= 2);

 public:
  struct Shared {  // of a warp
    uint64_t full[kSlots];
    float scales[kU8 ? kTiles : 1][kUnits][32];  // of tiles, in the lane order of DecodeTile
  };

  // Starts the first copies. All lanes of the warp call this and all that follows. `slots`: those
  // of the block.
  __device__ CacheRing(uint8_t* slots, Shared& shared, const Cache& cache, int kv_head,
                       const WarpRange& range)
      : slots_(slots + range.warp * kWarpBytes),
        shared_(&shared),
        range_(range),
        cache_(cache),
        kv_head_(kv_head) {
    const int n_rows = range.end - (range.begin + range.warp * kRows);
    n_tiles_ = n_rows <= 0 ? 0 : (n_rows + kWarps * kRows - 1) / (kWarps * kRows);
    turn_ = n_tiles_ == 0 ? 0 : range.turn % n_tiles_;
    if constexpr (kBulk) {
      policy_ = ptx::evict_first_policy();
      if (lane() == 0) {
#pragma unroll
        for (uint64_t& full : shared_->full) ptx::mbarrier_init(&full, 1);
        ptx::mbarrier_init_fence();
      }
      __syncwarp();
    }
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) fill(slot);
  }

  __device__ int n_tiles() const { return n_tiles_; }
  // The bytes from one row in a slot to the next.
  __device__ int row_bytes() const {
    return (cache_.head_dim * Tile::kElementBytes + 15) / 16 * 16;
  }

  // Waits for the next tile, of keys or of values. `newest`: the rows of the positions from
  // `readable` on.
  __device__ TileRows take(const uint4* newest) {
    if constexpr (kInGroups) ptx::copy_async_wait<kSlots - 1>();  // the oldest of kSlots
    if constexpr (kBulk) {
      // By a vote, so that the lanes leave together: ptx::warp_index().
      const uint32_t full = ptx::shared_address(shared_->full + slot_);
      while (!__all_sync(~0u, ptx::mbarrier_is_complete(full, parity_))) ptx::before_next_try();
    } else {
      __syncwarp();
    }
    const int start = start_of(n_taken_ / 2);
    return {slots_ + slot_ * kSlotBytes,    newest, min(kRows, max(range_.readable - start, 0)),
            min(kRows, range_.end - start), start,  max(start - range_.readable, 0)};
  }
  // This lane's scales of the tile of keys that was taken.
  __device__ void load_scales(float (&scales)[kUnits]) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      scales[u] = kU8 ? shared_->scales[n_taken_ / 2 % kTiles][u][lane()] : 1.0f;
  }

  // Called after the last read of the tile that was taken.
  __device__ void refill() {
    __syncwarp();
    fill(slot_);
    ++n_taken_;
    if (++slot_ == kSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ static int lane() { return int(threadIdx.x) % 32; }

  __device__ int start_of(int tile) const {
    const int turned = tile + turn_;
    return range_.begin +
           ((turned < n_tiles_ ? turned : turned - n_tiles_) * kWarps + range_.warp) * kRows;
  }

  // Starts the next copy. It commits a group of this thread's copies each time, an empty one after
  // the last tile.
  __device__ void fill(int slot) {
    if (n_filled_ < 2 * n_tiles_) {
      const bool is_key = n_filled_ % 2 == 0;
      const int start = start_of(n_filled_ / 2);
      const int n_rows = min(kRows, max(range_.readable - start, 0));
      static_assert(kPage % kRows == 0);  // and `start` is a multiple of kRows: one page has them
      const int64_t first = n_rows > 0 ? cache_.row(kv_head_, start) : 0;
      copy_rows(slot, static_cast<const uint8_t*>(is_key ? cache_.keys : cache_.values), first,
                n_rows);
      if (kU8 && is_key) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const int row = u * 16 + Tile::scale_row();
          float* const to = &shared_->scales[n_filled_ / 2 % kTiles][u][lane()];
          const float* const scales =
              Tile::has_key_scale() ? cache_.key_scales : cache_.value_scales;
          if (row < n_rows) ptx::copy_async_4(ptx::shared_address(to), scales + first + row);
        }
      }
    }
    if constexpr (kInGroups) ptx::copy_async_commit();
    ++n_filled_;
  }

  __device__ void copy_rows(int slot, const uint8_t* rows, int64_t first, int n_rows) {
    const int row_bytes = cache_.head_dim * Tile::kElementBytes, n_bytes = n_rows * row_bytes;
    const uint8_t* const from = rows + first * row_bytes;
    uint8_t* const to = slots_ + slot * kSlotBytes;
    if constexpr (kBulk) {
      if (lane() == 0) {
        ptx::mbarrier_expect(shared_->full + slot, n_bytes);
        if (n_bytes > 0) ptx::bulk_copy(to, from, n_bytes, shared_->full + slot, policy_);
      }
    } else if constexpr (kAligned) {
      const uint32_t address = ptx::shared_address(to);
#pragma unroll 4
      for (int at = 16 * lane(); at < n_bytes; at += 16 * 32) {
        ptx::copy_async_16(address + uint32_t(at), from + at);
      }
    } else {
      const int stride = this->row_bytes();
      for (int row = 0; row < n_rows; ++row)
        for (int at = lane(); at < stride; at += 32)
          to[row * stride + at] = at < row_bytes ? from[row * row_bytes + at] : uint8_t{0};
    }
  }

  uint8_t* slots_;
  Shared* shared_;
  WarpRange range_;
  const Cache& cache_;
  const int kv_head_;
  uint64_t policy_ = 0;
  int n_tiles_, turn_;
  int n_filled_ = 0, n_taken_ = 0, slot_ = 0, parity_ = 0;
};

}  // namespace minfer::cuda::attention
