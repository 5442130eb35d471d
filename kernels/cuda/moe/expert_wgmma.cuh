#pragma once

#include "kernels/cuda/gemm/tma.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"
#include "kernels/cuda/moe/expert_gemm.cuh"

namespace minfer::cuda {

constexpr int kWgmmaProducers = 128, kWgmmaConsumers = 256;  // threads
constexpr int kWgmmaThreads = kWgmmaProducers + kWgmmaConsumers;
constexpr int kWgmmaColumns = 256;  // rows of weights in a tile; with SwiGlu, half gate, half up
constexpr int kWgmmaStages = 3;

// Shared memory of the kernel, in front of where the tiles of each expert begin.
template <GemvWeights kWeights>
struct alignas(1024) WgmmaShared {
  // Codes wait here for the threads that dequantize them; floats go to their place at once.
  static constexpr int kRawBytes =
      kWeights == GemvWeights::Float
          ? 16
          : kWgmmaColumns / kTileRows * ExpertStage<kWeights>::kTileBytes;
  // Rows of 64 columns, 128 bytes, with the 128-byte swizzle that wgmma reads.
  uint8_t w[kWgmmaStages][kWgmmaColumns * 128];
  uint8_t x[kWgmmaStages][kExpertRows * 128];
  uint8_t raw[kWgmmaStages][kRawBytes];
  int rows[kExpertRows];  // of x, of the producer's tile; -1: none
  uint64_t full[kWgmmaStages], empty[kWgmmaStages];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A place in the ring of stages, which producers and consumers go through in order.
struct WgmmaPlace {
  int slot = 0, parity = 0;

  __device__ void advance() {
    if (++slot == kWgmmaStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// The byte of column 8 `chunk` of a row in a stage.
__device__ inline int swizzled_byte(int row, int chunk) {
  return row * 128 + ((chunk ^ row % 8) << 4);
}

// The producers, 4 warps: they copy rows of x and weights by cp.async, and dequantize codes that
// they have copied themselves, four row tiles a warp.
template <typename T, GemvWeights kWeights, bool kSwiGlu>
struct WgmmaProducer {
  using Shared = WgmmaShared<kWeights>;
  using Stage = ExpertStage<kWeights>;
  static constexpr bool kIsFloat = kWeights == GemvWeights::Float;
  static constexpr int kStep = kWgmmaProducers / 8;               // rows that are copied at once
  static constexpr int kRows = kExpertRows / kStep;               // of x, for each thread
  static constexpr int kWeightRows = kWgmmaColumns / kStep;       // of float weights
  static constexpr int kOut = kWgmmaColumns / (kSwiGlu ? 2 : 1);  // columns of out
  static constexpr int kTiles = kWgmmaColumns / kTileRows / (kWgmmaProducers / 32);  // of a warp

  int first_row;  // of the weights
  // Floats: the expert's weights, with SwiGLU those of up second. Codes: the matrix of the warp's
  // row tiles, which are of gate or of up, and the first of them.
  const uint8_t* weights[2];
  const uint8_t* scales;
  const float* mins;
  int row_tile;

  __device__ WgmmaProducer(const ExpertTile& tile, const ExpertGemmParams& p) {
    const int warp = int(threadIdx.x) / 32;
    first_row = tile.column_block * kOut;
    const int in_tile = kTiles * warp * kTileRows;
    const bool is_up = kSwiGlu && in_tile >= kOut;
    const ExpertPlace& gate = p.places[tile.expert];
    const ExpertPlace& up = (kSwiGlu ? p.up_places : p.places)[tile.expert];
    const ExpertPlace& own = is_up ? up : gate;
    weights[0] = static_cast<const uint8_t*>((kIsFloat ? gate : own).weights);
    weights[1] = static_cast<const uint8_t*>(up.weights);
    scales = static_cast<const uint8_t*>(own.scales);
    mins = own.mins;
    row_tile = (first_row + (is_up ? in_tile - kOut : in_tile)) / kTileRows;
  }

  // Starts copying 64 columns of x, and of float weights, to a stage.
  __device__ void copy_columns(Shared& s, int slot, int step, const ExpertGemmParams& p) const {
    const int thread = int(threadIdx.x), chunk = thread % 8;
    const bool has_columns = step * 64 + chunk * 8 < p.in_dim;
    const auto copy = [&](uint8_t* stage, int row, const void* from, bool is_there) {
      ptx::copy_async_16(ptx::shared_address(stage + swizzled_byte(row, chunk)), from,
                         is_there ? 16 : 0);
    };
#pragma unroll 2
    for (int i = 0; i < kRows; ++i) {
      const int in_tile = thread / 8 + i * kStep, row = s.rows[in_tile];
      const bool is_there = row >= 0 && has_columns;
      const T* const from = static_cast<const T*>(p.x) + int64_t{row} * p.in_dim + step * 64;
      copy(s.x[slot], in_tile, is_there ? from + chunk * 8 : p.x, is_there);
    }
    if constexpr (kIsFloat) {
#pragma unroll 2
      for (int i = 0; i < kWeightRows; ++i) {
        const int in_tile = thread / 8 + i * kStep;
        const bool is_up = kSwiGlu && i * kStep >= kOut;
        const int row = min(first_row + (is_up ? in_tile - kOut : in_tile), p.out_dim - 1);
        const uint8_t* const from = (is_up ? weights[1] : weights[0]) +
                                    (int64_t{row} * p.in_dim + step * 64 + chunk * 8) * 2;
        copy(s.w[slot], in_tile, has_columns ? from : p.x, has_columns);
      }
    }
  }

  // Starts copying the codes of 64 columns, with their scales and mins.
  __device__ void copy_codes(uint8_t* raw, int step, const ExpertGemmParams& p) const {
    if constexpr (!kIsFloat) {
      const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll 2
      for (int r = 0; r < kTiles; ++r) {
        const int64_t at = min(row_tile + r, p.n_row_tiles - 1);
        const int64_t scale = at * p.n_units * kTileRows;
        copy_code_tile<kWeights>(raw + (kTiles * warp + r) * Stage::kTileBytes,
                                 weights[0] + at * p.row_tile_bytes + lane * 16,
                                 scales + scale * (p.scales_are_f32 ? 4 : 2) + lane * 16,
                                 mins + scale + lane * 4, lane, step, p);
      }
    }
  }

  // Writes the values of the codes, rounded to T, to the stage.
  __device__ void dequantize(Shared& s, int slot, const uint8_t* raw,
                             const ExpertGemmParams& p) const {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, g = lane / 4,
              t = lane % 4;
#pragma unroll 1
    for (int r = 0; r < kTiles; ++r) {
      const int row_tile = kTiles * warp + r;
      const StagedWeights<T, kWeights> codes{raw + row_tile * Stage::kTileBytes};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Fragments a;
        codes.load(a, half, p);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int lower = 0; lower < 2; ++lower) {  // columns 4 t to 4 t + 3 of 16
            const int row = row_tile * kTileRows + g + 8 * lower;
            uint8_t* const to =
                s.w[slot] + swizzled_byte(row, half * 4 + i * 2 + t / 2) + t % 2 * 8;
            *reinterpret_cast<uint2*>(to) = uint2{a[i][lower], a[i][lower + 2]};
          }
        }
      }
    }
  }

  // All steps of one tile. Codes are copied two steps ahead, everything else one.
  __device__ void run(Shared& s, WgmmaPlace& place, const ExpertTile& tile,
                      const ExpertGemmParams& p) const {
    static_assert(kWgmmaProducers == kExpertRows);
    const int of_thread = tile.place + int(threadIdx.x);
    int row = -1;
    if (of_thread < tile.end) row = p.x_by_place ? of_thread : p.pairs[of_thread] / p.n_active;
    ptx::named_barrier(3, kWgmmaProducers);  // the rows of the tile before have been read
    s.rows[threadIdx.x] = row;
    ptx::named_barrier(3, kWgmmaProducers);
    WgmmaPlace next = place;
    const auto start_columns = [&](int step) {
      if (step < p.n_steps) {
        ptx::mbarrier_wait(s.empty + next.slot, next.parity ^ 1);
        copy_columns(s, next.slot, step, p);
        next.advance();
      }
      ptx::copy_async_commit();
    };
    const auto start_codes = [&](int step) {
      if (step < p.n_steps) copy_codes(s.raw[step % kWgmmaStages], step, p);
      ptx::copy_async_commit();
    };
    __syncwarp();  // the codes of the tile before have been read
    start_codes(0);
    start_columns(0);
    start_codes(1);
    for (int step = 0; step < p.n_steps; ++step) {
      start_columns(step + 1);
      start_codes(step + 2);
      ptx::copy_async_wait<3>();
      if constexpr (!kIsFloat) {
        __syncwarp();  // scales are copied by other lanes
        dequantize(s, place.slot, s.raw[step % kWgmmaStages], p);
        __syncwarp();
      }
      ptx::fence_for_copy_engine();  // wgmma reads as TMA does
      ptx::mbarrier_arrive(s.full + place.slot);
      place.advance();
    }
    ptx::copy_async_wait<0>();
  }
};

#endif

// The same as expert_gemm_kernel by wgmma (sm_90a), for experts with many rows
//
//   launch    persistent, a tile of at most kExpertRows rows of x by kWgmmaColumns rows of weights
//             at a time. One warpgroup is the producer (WgmmaProducer); each of the other two
//             multiplies 64 rows of x with all weights of the tile, or only releases the stages if
//             it has no rows
//   maths     as there
//   moves     as there; codes pass through shared memory once more, as half
template <typename T, GemvWeights kWeights, bool kSwiGlu>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    expert_wgmma_kernel(const __grid_constant__ ExpertGemmParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WgmmaShared<kWeights>;
  uint8_t* const raw = ptx::dynamic_shared();
  auto& s = *reinterpret_cast<Shared*>(raw);
  int* const tile_begins = reinterpret_cast<int*>(raw + sizeof(Shared));
  const int warpgroup = ptx::warpgroup_index();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kWgmmaStages; ++i) {
      ptx::mbarrier_init(s.full + i, kWgmmaProducers);
      ptx::mbarrier_init(s.empty + i, kWgmmaConsumers / 32);
    }
    ptx::mbarrier_init_fence();
  }
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  count_tiles(tile_begins, p.begins, p.n_experts);  // ends with a barrier
  const int n_tiles = tile_begins[p.n_experts] * p.column_blocks;
  WgmmaPlace place;

  if (warpgroup < kWgmmaProducers / 128) {
    ptx::shrink_registers<72>();
    for (int at = int(blockIdx.x); at < n_tiles; at += int(gridDim.x)) {
      const ExpertTile tile = tile_at(at, tile_begins, p);
      WgmmaProducer<T, kWeights, kSwiGlu>(tile, p).run(s, place, tile, p);
    }
    return;
  }

  ptx::grow_registers<216>();
  const int consumer = warpgroup - kWgmmaProducers / 128, thread = int(threadIdx.x) % 128;
  const int warp = thread / 32, lane = thread % 32;
  const auto release = [&](int slot) {
    if (lane == 0) ptx::mbarrier_arrive(s.empty + slot);
  };
  for (int at = int(blockIdx.x); at < n_tiles; at += int(gridDim.x)) {
    const ExpertTile tile = tile_at(at, tile_begins, p);
    const int n_rows = tile.end - tile.place - consumer * 64;  // of this warpgroup
    if (n_rows <= 0) {
      for (int step = 0; step < p.n_steps; ++step) {
        ptx::mbarrier_wait(s.full + place.slot, place.parity);
        __syncwarp();
        release(place.slot);
        place.advance();
      }
      continue;
    }
    float d[kWgmmaColumns / 2];
    int previous = -1;
    for (int step = 0; step < p.n_steps; ++step) {
      ptx::mbarrier_wait(s.full + place.slot, place.parity);
      const uint64_t x_tile = ptx::wgmma_tile(s.x[place.slot] + consumer * 64 * 128);
      const uint64_t w_tile = ptx::wgmma_tile(s.w[place.slot]);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::wgmma(d, x_tile + 2 * i, w_tile + 2 * i, step > 0 || i > 0, T{});
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // one step stays in flight; the one before it has read its stage
      __syncwarp();
      if (previous >= 0) release(previous);
      previous = place.slot;
      place.advance();
    }
    ptx::wgmma_wait<0>();
    __syncwarp();
    release(previous);

    // d[4 j + 2 h + i]: row 16 warp + lane / 4 + 8 h, column 8 j + 2 (lane % 4) + i.
    constexpr int kOut = kWgmmaColumns / (kSwiGlu ? 2 : 1);
    const int first = tile.column_block * kOut;
    const auto bias_of = [&](const ExpertPlace* places, int column) {
      const T* const bias = static_cast<const T*>(places[tile.expert].bias);
      return bias == nullptr ? 0.0f : to_float(bias[column]);
    };
#pragma unroll
    for (int j = 0; j < kOut / 8; ++j) {
      const int column = first + 8 * j + lane % 4 * 2;
      if (column >= p.out_dim) continue;  // out_dim is even
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp * 16 + lane / 4 + 8 * h;
        if (row >= n_rows) continue;
        float values[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          values[i] = d[4 * j + 2 * h + i] + bias_of(p.places, column + i);
          if constexpr (kSwiGlu) {
            const float up = d[kOut / 2 + 4 * j + 2 * h + i] + bias_of(p.up_places, column + i);
            values[i] = silu(values[i]) * up;
          }
        }
        T* const out =
            static_cast<T*>(p.out) + int64_t{tile.place + consumer * 64 + row} * p.out_dim + column;
        *reinterpret_cast<uint32_t*>(out) = pack_pair(values[0], values[1], T{});
      }
    }
    ptx::named_barrier(1 + consumer, 128);  // for the compiler: see ptx::warpgroup_index
  }
#endif
}

}  // namespace minfer::cuda
