#pragma once

#include <cstdint>

#include "kernels/cuda/checkable.h"
#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/hgemm_tile.cuh"
#include "kernels/cuda/gemm/tma.cuh"

namespace minfer::cuda {

// The byte offset of a 16-byte chunk in rows of kRowBytes, 64 or 128, with the swizzle of that
// width.
template <int kRowBytes>
__device__ inline int staged_at(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ (kRowBytes == 128 ? row % 8 : row / 2 % 4)) * 16);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Stores a box of out from `staging` by TMA, or adds it for Accumulate. One thread calls, and calls
// bulk_commit() afterwards.
__device__ inline void send_box(const GemmArgs& args, const CUtensorMap& map, bool out_is_f32,
                                const uint8_t* staging, int row, int column) {
  if (out_is_f32 && args.epilogue == Epilogue::Accumulate) {
    ptx::tensor_add(&map, staging, column, row);
  } else {
    ptx::tensor_store(&map, staging, column, row);
  }
}
// The same to a page of a KV cache. Does nothing past the last row or column.
__device__ inline void send_box_to_page(const GemmArgs& args, const GemmArgs::Part& part,
                                        const CUtensorMap& map, const CUtensorMap& map_of_last,
                                        const uint8_t* staging, int row, int column) {
  if (row >= args.m || column >= part.n) return;
  const CacheBox box(part, row, column);
  const bool is_last = box.page == (part.pos + args.m - 1) / int{kPagePositions};
  ptx::tensor_store(is_last ? &map_of_last : &map, staging, column % kFusedHeadDim, box.row,
                    box.matrix);
}

// The same for n_rows rows of kRowBytes by single elements, where rows of out are not 16-byte
// aligned, so that there is no tensor map. All threads of a warpgroup call.
template <typename T, int kRowBytes>
__device__ inline void send_elements(const GemmArgs& args, const GemmArgs::Part& part,
                                     bool out_is_f32, const uint8_t* staging, int row, int n_rows,
                                     int column) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int size = out_is_f32 ? 4 : 2, width = kRowBytes / size;
#pragma unroll 1
  for (int first = 0; first < n_rows * width; first += 128) {  // a multiple of 128 elements
    const int r = (first + thread) / width, c = (first + thread) % width, byte = c * size;
    const uint8_t* const from = staging + staged_at<kRowBytes>(r, byte / 16) + byte % 16;
    const float sum = out_is_f32 ? *reinterpret_cast<const float*>(from)
                                 : to_float(*reinterpret_cast<const T*>(from));
    if (row + r < args.m && column + c < part.n) {
      put<T>(args, part.out, place_in_out(part, row + r, column + c), sum);
    }
  }
}

// Stores the results of a consumer warpgroup: 64 rows at a time, in boxes of 128 bytes per row.
// store() stores at once. hold() keeps the last kHeldBoxes boxes, as many as there are registers
// for, in registers, rounded to out's type, and stores the others; send_held() then stores one box
// at a time during the K loop of the next tile, so that the tensor cores do not wait. All threads
// of the warpgroup call.
template <typename T, typename Tile, HgemmKind kKind>
class HgemmOut {
 public:
  static constexpr int kOut = Tile::template kOut<kKind>;
  static constexpr int kHeldBoxes = Tile::template kHeldBoxes<kKind>;

  // staging: two buffers; barrier: the id of the warpgroup's named barrier; k_split: the block's
  // slice of split-K, which stores every cut.split-th box of 64 columns
  __device__ HgemmOut(const HgemmMaps& maps, const GemmArgs& args, const HgemmCut& cut,
                      uint8_t (&staging)[2][kStagingBytes], int barrier, int k_split)
      : maps_(maps),
        args_(args),
        cut_(cut),
        staging_(staging),
        barrier_(barrier),
        k_split_(k_split),
        row_(args.m) {}

  // Stores wgmma's accumulators of 64 rows from `row` on and of columns from `column` on of a
  // part's out.
  template <int kSums>
  __device__ void store(const float (&d)[kSums], int part, int row, int column) {
    set_place(part, row, column);
    store_first<kBoxes>(d);
  }

  // Holds them instead. Requires cut.holds, and that nothing is held yet.
  template <int kSums>
  __device__ void hold(const float (&d)[kSums], int part, int row, int column) {
    set_place(part, row, column);
    if constexpr (kIsF32) {
      store_first<kBoxes - kHeldBoxes>(d);
#pragma unroll
      for (int j = 0; j < kHeldBoxes * 16; ++j) {  // a copy, so that d keeps its registers
        held_[j] = ptx::copied_bits(d[(kBoxes - kHeldBoxes) * 16 + j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kOut / 4; ++j) held_[j] = pack_pair<T>(d[j * 2], d[j * 2 + 1]);
    }
  }
  // Stores a held box; call it once for each. Nothing is stored past the last row or column.
  __device__ void send_held(int box) {
    if constexpr (kIsF32) {
      stage_and_send((kBoxes - kHeldBoxes + box) * 32, held_by_map(),
                     [&](int j) { return __uint_as_float(held_[box * 16 + j]); });
    } else {
      const int offset = offset_of(box);
      stage_and_send(offset, held_by_map(), [&](int j) { return held_[offset / 4 + j]; });
    }
  }
  __device__ void send_all_held() {
#pragma unroll
    for (int box = 0; box < kHeldBoxes; ++box) send_held(box);
    row_ = args_.m;  // nothing is held: send_held() stores nothing
  }

 private:
  static constexpr bool kIsF32 = kKind == HgemmKind::Sums;
  static constexpr int kBoxes = Tile::template kBoxes<kKind>;
  static constexpr int kHeld = kHeldBoxes == 0 ? 1 : kIsF32 ? kHeldBoxes * 16 : kOut / 4;

  __device__ static int offset_of(int box) {
    if (kIsF32) return box * 32;
    return Tile::template kOverlaps<kKind> ? min(box * 64, kOut - 64) : box * 64;
  }

  // In a checkable build (checkable.h), nothing is stored by tensor map.
  __device__ bool held_by_map() const { return !kIsCheckable || cut_.out_by_map[part_]; }

  __device__ void set_place(int part, int row, int column) {
    part_ = part;
    row_ = row;
    column_ = column;
  }

  template <int kFirst, int kSums>
  __device__ void store_first(const float (&d)[kSums]) {
    const bool by_map = cut_.out_by_map[part_];
#pragma unroll
    for (int box = 0; box < kFirst; ++box) {
      const int offset = offset_of(box);
      if (Tile::template kCanSplit<kKind> && offset / 64 % cut_.split != k_split_) continue;
      if (row_ >= args_.m || column_ + offset >= args_.part[part_].n) continue;
      if constexpr (kIsF32) {
        stage_and_send(offset, by_map, [&](int j) { return d[offset / 2 + j]; });
      } else {
        stage_and_send(offset, by_map, [&](int j) {
          return pack_pair<T>(d[offset / 2 + j * 2], d[offset / 2 + j * 2 + 1]);
        });
      }
    }
  }

  // sum(j): the j-th accumulator of this thread in the columns from `offset` on, or the j-th packed
  // pair of them if out is T.
  template <typename Sum>
  __device__ void stage_and_send(int offset, bool by_map, const Sum& sum) {
    if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<1>();
    ptx::named_barrier(barrier_, 128);
    const CUtensorMap& map = maps_.out[part_];
    if constexpr (kIsF32) {
      stage_floats(sum);
      send_staged<128>(map, offset, by_map);
    } else if (offset + 64 <= kOut) {
      stage_halves<64>(sum);
      send_staged<128>(map, offset, by_map);
    } else {
      stage_halves<32>(sum);
      send_staged<64>(maps_.out_half[part_], offset, by_map);
    }
  }

  template <typename Sum>
  __device__ void stage_floats(const Sum& sum) const {  // 32 columns
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // two columns of one row
      const int r = warp * 16 + lane / 4 + j % 2 * 8;
      const int chunk = j / 2 * 2 + lane % 4 / 2;  // of 16 bytes
      uint8_t* const to = staging_[turn_] + staged_at<128>(r, chunk) + lane % 2 * 8;
      *reinterpret_cast<float2*>(to) = make_float2(sum(j * 2), sum(j * 2 + 1));
    }
  }
  template <int kWidth, typename Pair>
  __device__ void stage_halves(const Pair& pair) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int j = 0; j < kWidth / 16; ++j) {  // rows 0-7 and 8-15 of both halves of 16 columns
      const int r = warp * 16 + lane % 16, chunk = j * 2 + lane / 16;
      ptx::store_matrix_x4(staging_[turn_] + staged_at<kWidth * 2>(r, chunk), pair(j * 4),
                           pair(j * 4 + 1), pair(j * 4 + 2), pair(j * 4 + 3));
    }
  }

  // Stores the staged box of 64 rows of kRowBytes, and switches to the other staging buffer.
  template <int kRowBytes>
  __device__ void send_staged(const CUtensorMap& map, int offset, bool by_map) {
    const uint8_t* const staging = staging_[turn_];
    const GemmArgs::Part& part = args_.part[part_];
    turn_ ^= 1;
    ptx::fence_for_copy_engine();
    ptx::named_barrier(barrier_, 128);
    if (!by_map) {
      send_elements<T, kRowBytes>(args_, part, kIsF32, staging, row_, 64, column_ + offset);
    }
    if (threadIdx.x % 128 == 0) {
      if (by_map && part.pages != nullptr) {
        send_box_to_page(args_, part, map, maps_.out_last[part_], staging, row_, column_ + offset);
      } else if (by_map) {
        send_box(args_, map, kIsF32, staging, row_, column_ + offset);
      }
      ptx::bulk_commit();  // even if empty: bulk_wait_read<1>() counts groups
    }
  }

  const HgemmMaps& maps_;
  const GemmArgs& args_;
  const HgemmCut& cut_;
  uint8_t (&staging_)[2][kStagingBytes];
  int barrier_, k_split_;
  int turn_ = 0;  // which staging buffer is next
  int part_ = 0, row_, column_ = 0;
  uint32_t held_[kHeld] = {};
};
#endif

}  // namespace minfer::cuda
