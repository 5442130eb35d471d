#pragma once

#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/gemm/hgemm_out.cuh"
#include "kernels/cuda/gemm/wgmma.cuh"
#include "kernels/cuda/moe/expert_columns.cuh"
#include "kernels/cuda/moe/expert_fetch.cuh"

namespace minfer::cuda {

constexpr int kWgmmaProducers = 128, kWgmmaConsumers = 256;  // threads
constexpr int kWgmmaThreads = kWgmmaProducers + kWgmmaConsumers;
constexpr int kWgmmaTokens = 136;  // rows of x in a tile, at most
constexpr int kFewTokens = 72;     // of a tile with fewer
constexpr int kWgmmaRows = 256;    // rows of weights in a tile; with SwiGlu, half gate, half up
constexpr int kStagedTokens = 72;  // rows of out that a consumer stages at once

// Shared memory of the kernel, in front of where the tiles of each expert begin.
template <ExpertFormat kFormat>
struct alignas(1024) WgmmaShared {
  static constexpr bool kIsFloat = weights_of(kFormat) == GemvWeights::Float;
  static constexpr int kStages = kIsFloat                                 ? 4
                                 : weights_of(kFormat) == GemvWeights::U8 ? 5
                                 : has_plain_scales(kFormat)              ? 7
                                                                          : 6;
  // Floats: rows of 64 columns, 128 bytes, with the 128-byte swizzle that wgmma reads, as those of
  // x. Codes: as they are packed, with their scales, mins and upper bits (ExpertStage).
  static constexpr int kWBytes =
      kIsFloat ? kWgmmaRows * 128 : kWgmmaRows / kTileRows * ExpertStage<kFormat>::kTileBytes;
  uint8_t w[kStages][kWBytes];
  uint8_t x[kStages][kWgmmaTokens * 128];
  uint8_t staging[kWgmmaConsumers / 128][kStagedTokens * 128];
  uint64_t full[kStages], empty[kStages];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A place in the ring of stages, which producers and consumers go through in order.
template <int kStages>
struct WgmmaPlace {
  int slot = 0, parity = 0;

  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// The producers, 4 warps, which copy by cp.async, 16 bytes a thread, 8 of words of U2. They have
// few instructions for each step, since a warp issues one at a time: one to add the offset of a
// row, in 16 bytes, to a pointer that advances, and one to copy; and no waits for copies.
template <typename T, ExpertFormat kFormat, bool kSwiGlu>
class WgmmaProducer {
 public:
  using Shared = WgmmaShared<kFormat>;

  // Floats have no scales: their pieces are never copied.
  __device__ WgmmaProducer(Shared& s, const ExpertGemmParams& p)
      : s_(s),
        p_(p),
        unit_bytes_(scales_are_f32<kFormat>(p) ? 64 : 32),
        scales_(kIsFloat ? 16 : p.units_of_step * unit_bytes_),
        mins_(kIsFloat ? 16 : p.units_of_step * 64) {}

  // Starts to copy all steps of a tile, each as soon as there is a free stage.
  __device__ void load(const ExpertTile& tile) {
    set_x(tile);
    set_weights(tile);
    const int chunk = int(threadIdx.x) % 8;
    const auto* x_of_step = static_cast<const uint8_t*>(p_.x) + chunk * 16;
    const uint32_t in_stage = uint32_t(staged_at<128>(int(threadIdx.x) / 8, chunk));
    for (int step = 0; step < p_.n_steps; ++step) {
      ptx::mbarrier_wait(s_.empty + next_.slot, next_.parity ^ 1);
      const int n_bytes = step * 64 + chunk * 8 < p_.in_dim ? 16 : 0;  // past the end: zeros
      const uint32_t x = ptx::shared_address(s_.x[next_.slot]) + in_stage;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (int(threadIdx.x) / 8 + i * kStep >= kWgmmaTokens) continue;
        ptx::copy_async_16(x + i * kStep * 128, x_of_step + uint64_t{x_[i]} * 16, n_bytes);
      }
      x_of_step += 128;
      const uint32_t w = ptx::shared_address(s_.w[next_.slot]);
      if constexpr (kIsFloat) {
        copy_floats(w + in_stage, p_.out_dim - 1 - tile.column_block * kOut, n_bytes);
      } else {
        copy_codes(w, step);
      }
      ptx::copy_async_arrive(s_.full + next_.slot);
      next_.advance();
    }
  }

 private:
  using Stage = ExpertStage<kFormat>;
  static constexpr bool kIsFloat = Shared::kIsFloat;
  static constexpr int kStep = kWgmmaProducers / 8;                 // rows that are copied at once
  static constexpr int kRows = (kWgmmaTokens + kStep - 1) / kStep;  // of x, for each thread
  static constexpr int kWeightRows = kWgmmaRows / kStep;            // of float weights
  static constexpr int kOut = kWgmmaRows / (kSwiGlu ? 2 : 1);       // columns of out
  static constexpr int kRowTiles = kWgmmaRows / kTileRows;          // of codes
  static constexpr int kTilesOfWarp = kRowTiles / (kWgmmaProducers / 32);

  // How the threads share the scales, or mins, of the row tiles of a stage, as pieces of 16 bytes:
  // 1, 2, 4, 8 or 16 of a row tile. A thread has at most two; the tile of the second is
  // kRowTiles / 2 further.
  struct Pieces {
    const uint8_t* from[2];
    int n;           // of all row tiles
    int tile, byte;  // of the first piece

    __device__ explicit Pieces(int bytes_of_tile) : n(kRowTiles * bytes_of_tile / 16) {
      const int of_tile = n / kRowTiles;
      tile = int(threadIdx.x) >> (__ffs(of_tile) - 1);
      byte = int(threadIdx.x) % of_tile * 16;
    }
    __device__ bool is_there(int i) const { return int(threadIdx.x) + i * kWgmmaProducers < n; }
    __device__ void copy(uint32_t to, int64_t offset) const {
      to += uint32_t(tile * Stage::kTileBytes + byte);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!is_there(i)) continue;
        ptx::copy_async_16(to + i * (kRowTiles / 2) * Stage::kTileBytes, from[i] + offset);
      }
    }
  };

  // Rows that the tile does not have are copies of its last one: no sum of another row reads them.
  __device__ void set_x(const ExpertTile& tile) {
    const int thread = int(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int place = min(tile.place + thread / 8 + i * kStep, tile.end - 1);
      const int row = p_.x_by_place ? place : p_.pairs[place] / p_.n_active;
      x_[i] = uint32_t(int64_t{row} * p_.in_dim / 8);
    }
  }

  __device__ void set_weights(const ExpertTile& tile) {
    const int thread = int(threadIdx.x), first_row = tile.column_block * kOut;
    const ExpertPlace& gate = p_.places[tile.expert];
    const ExpertPlace& up = (kSwiGlu ? p_.up_places : p_.places)[tile.expert];
    if constexpr (kIsFloat) {
      const int64_t offset = (first_row * int64_t{p_.in_dim} + thread % 8 * 8) * 2;
      w_[0] = static_cast<const uint8_t*>(gate.weights) + offset;
      w_[1] = static_cast<const uint8_t*>(up.weights) + offset;
      return;
    }
    const auto is_up = [](int row_tile) { return kSwiGlu && row_tile * kTileRows >= kOut; };
    const auto place_of = [&](int row_tile) -> const ExpertPlace& {
      return is_up(row_tile) ? up : gate;
    };
    const auto in_matrix = [&](int row_tile) -> int64_t {  // results past the last are not stored
      const int row = first_row + row_tile * kTileRows - (is_up(row_tile) ? kOut : 0);
      return min(row / kTileRows, p_.n_row_tiles - 1);
    };
    const int first_tile = thread / 32 * kTilesOfWarp;  // a warp has tiles of one matrix
    w_[0] = static_cast<const uint8_t*>(place_of(first_tile).weights) + thread % 32 * 16;
#pragma unroll
    for (int r = 0; r < kTilesOfWarp; ++r) {
      tiles_[r] = uint32_t(in_matrix(first_tile + r) * p_.row_tile_bytes / 16);
    }
    if constexpr (are_products(kFormat)) {  // eight threads for each row tile
      static_assert(kWgmmaProducers == 8 * kRowTiles);
      records_ = static_cast<const uint8_t*>(place_of(thread / 8).scales) +
                 in_matrix(thread / 8) * (p_.n_steps / 4) * p_.record_bytes;
      return;
    }
    const int64_t n_scales = int64_t{p_.n_units} * kTileRows;  // of a row tile
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (scales_.is_there(i)) {
        const int row_tile = scales_.tile + i * kRowTiles / 2;
        scales_.from[i] = static_cast<const uint8_t*>(place_of(row_tile).scales) +
                          in_matrix(row_tile) * n_scales * (unit_bytes_ / kTileRows) + scales_.byte;
      }
      if (has_mins<kFormat>(p_) && mins_.is_there(i)) {
        const int row_tile = mins_.tile + i * kRowTiles / 2;
        mins_.from[i] = reinterpret_cast<const uint8_t*>(place_of(row_tile).mins +
                                                         in_matrix(row_tile) * n_scales) +
                        mins_.byte;
      }
    }
  }

  // last: the last row of weights, counted from the first one of the tile. Those past it are copies
  // of it, whose results are not stored.
  __device__ void copy_floats(uint32_t to, int last, int n_bytes) {
    const int64_t row_bytes = int64_t{p_.in_dim} * 2;
    constexpr int kOfMatrix = kOut / kStep;
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      const int row = min(int(threadIdx.x) / 8 + i % kOfMatrix * kStep, last);
      ptx::copy_async_16(to + i * kStep * 128, w_[i / kOfMatrix] + row * row_bytes, n_bytes);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) w_[i] += n_bytes * 8;
  }

  __device__ void copy_codes(uint32_t to, int step) {
    const uint32_t own = to + threadIdx.x / 32 * kTilesOfWarp * Stage::kTileBytes;
#pragma unroll
    for (int r = 0; r < kTilesOfWarp; ++r) {
      copy_words<kFormat>(own + uint32_t(r * Stage::kTileBytes), w_[0] + uint64_t{tiles_[r]} * 16,
                          int(threadIdx.x) % 32);
    }
    w_[0] += Stage::words_at(step + 1) - Stage::words_at(step);
    if constexpr (are_products(kFormat)) {
      const uint32_t row_tile = to + threadIdx.x / 8 * uint32_t(Stage::kTileBytes);
      return copy_of_record<kFormat>(row_tile, records_, int(threadIdx.x) % 8, step, p_);
    }
    const int unit = step * p_.units_of_step >> p_.step_shift;
    scales_.copy(to + Stage::kWordBytes, unit * unit_bytes_);
    if (has_mins<kFormat>(p_)) mins_.copy(to + Stage::kMinsAt, unit * 64);
  }

  Shared& s_;
  const ExpertGemmParams& p_;
  int unit_bytes_;  // of the scales of a row tile
  Pieces scales_, mins_;
  const uint8_t* records_ = nullptr;  // of products, in their place
  WgmmaPlace<Shared::kStages> next_;
  // Where the thread's rows of x begin, in 16 bytes, and where it reads weights in the next step:
  // of floats, in the first of its rows of gate and of up; of codes, in a matrix, whose row tiles
  // are at tiles_, in 16 bytes.
  uint32_t x_[kRows], tiles_[kIsFloat ? 1 : kTilesOfWarp];
  const uint8_t* w_[kIsFloat ? 2 : 1];
};

// A warpgroup of the two that multiply: two blocks of 64 rows of weights, kWgmmaRows / 2 rows
// apart, by all rows of x in the tile. With SwiGlu, the first are of gate, the others of up.
template <typename T, ExpertFormat kFormat, bool kSwiGlu>
class WgmmaConsumer {
 public:
  using Shared = WgmmaShared<kFormat>;

  __device__ WgmmaConsumer(Shared& s, const ExpertGemmParams& p, int consumer)
      : s_(s), p_(p), consumer_(consumer) {}

  // kTokens: rows of x, at least those that the tile has.
  template <int kTokens>
  __device__ __forceinline__ void compute(const ExpertTile& tile) {
    float d[2][kTokens / 2] = {};  // not left to the first step: registers of one case at a time
    if constexpr (Shared::kIsFloat) {
      multiply_floats(d);
    } else {
      multiply_codes(d);
    }
    constexpr int kBlocks = kSwiGlu ? 1 : 2;
    const int first = tile.column_block * (kSwiGlu ? kWgmmaRows / 2 : kWgmmaRows) + consumer_ * 64;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const ExpertPlace* const places = kSwiGlu && b == 1 ? p_.up_places : p_.places;
      add_bias(d[b], places[tile.expert], first + (kSwiGlu ? 0 : b * kWgmmaRows / 2));
    }
    if constexpr (kSwiGlu) {
      const auto activate = [&](const SwiGluClamp& clamp) {
#pragma unroll
        for (int j = 0; j < kTokens / 2; ++j) d[0][j] = swiglu(d[0][j], d[1][j], clamp);
      };
      if (p_.clamp.limit == 0) {  // not a branch for each element
        activate({});
      } else {
        activate(p_.clamp);
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) store<kTokens>(d[b], tile, first + b * kWgmmaRows / 2);
  }

 private:
  __device__ int warp() const { return int(threadIdx.x) % 128 / 32; }

  // All K steps.
  template <int kSums>
  __device__ __forceinline__ void multiply_floats(float (&d)[2][kSums]) {
    int previous = -1;
    for (int step = 0; step < p_.n_steps; ++step) {
      wait_for_stage();
      const uint64_t x_tile = ptx::wgmma_tile(s_.x[at_.slot]);
      const uint64_t w_tile = ptx::wgmma_tile(s_.w[at_.slot] + consumer_ * 64 * 128);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          ptx::wgmma(d[b], w_tile + b * 128 * 128 / 16 + 2 * i, x_tile + 2 * i, true, T{});
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the step before has read its stage
      release(previous, previous >= 0);
      previous = at_.slot;
      at_.advance();
    }
    ptx::wgmma_wait<0>();
    release(previous, true);
  }
  // All K steps. A step has four groups of instructions: for two blocks of rows, by halves of 32
  // columns. Two of them are under way while the codes of the next one are dequantized. So when
  // a[at] is written, the group of the step before has read it; and behind the second group, all
  // groups of that step have read their stage.
  template <int kSums>
  __device__ __forceinline__ void multiply_codes(float (&d)[2][kSums]) {
    Fragments a[4];
    int previous = -1;
    for (int step = 0; step < p_.n_steps; ++step) {
      wait_for_stage();
      const uint64_t x_tile = ptx::wgmma_tile(s_.x[at_.slot]);
      constexpr int kTileBytes = ExpertStage<kFormat>::kTileBytes;
      const uint8_t* const codes = s_.w[at_.slot] + (consumer_ * 4 + warp()) * kTileBytes;
      const StagedWeights<T, kFormat> weights[] = {{codes, step, p_},
                                                   {codes + 8 * kTileBytes, step, p_}};
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const int half = at / 2, b = at % 2;
        weights[b].load(a[at], half, p_);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::wgmma(d[b], a[at][i], x_tile + 4 * half + 2 * i, true, T{});
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<2>();
        if (at == 1) release(previous, previous >= 0);
      }
      previous = at_.slot;
      at_.advance();
    }
    ptx::wgmma_wait<0>();
    release(previous, true);
  }
  __device__ void wait_for_stage() const {
    ptx::mbarrier_wait(s_.full + at_.slot, at_.parity);
    // wgmma reads as TMA does. Consumers execute the fence: it would make producers wait for all
    // of their copies.
    ptx::fence_for_copy_engine();
  }
  // Without a branch: between two groups of wgmma under way, one would make ptxas wait for each
  // instruction before the next one (C7513).
  __device__ void release(int slot, bool is_there) const {
    __syncwarp();
    const uint32_t barrier = ptx::shared_address(s_.empty) + uint32_t(slot * 8);
    ptx::mbarrier_arrive_if(is_there && threadIdx.x % 32 == 0, barrier);
  }

  // d[4 j + 2 h + i]: row 16 warp + lane / 4 + 8 h of the weights, row 8 j + 2 (lane % 4) + i of x.
  template <int kSums>
  __device__ void add_bias(float (&d)[kSums], const ExpertPlace& place, int first) const {
    const T* const bias = static_cast<const T*>(place.bias);
    if (bias == nullptr) return;
    const int row = first + warp() * 16 + int(threadIdx.x) % 32 / 4;
    const float of[] = {row < p_.out_dim ? to_float(bias[row]) : 0.0f,
                        row + 8 < p_.out_dim ? to_float(bias[row + 8]) : 0.0f};
#pragma unroll
    for (int j = 0; j < kSums; ++j) d[j] += of[j / 2 % 2];
  }

  // 64 columns of out, kStagedTokens rows at a time.
  template <int kTokens>
  __device__ void store(const float (&d)[kTokens / 2], const ExpertTile& tile, int column) const {
    const int n_rows = tile.end - tile.place, lane = int(threadIdx.x) % 32;
    uint8_t* const staging = s_.staging[consumer_];
#pragma unroll
    for (int first = 0; first < kTokens; first += kStagedTokens) {
      if (first < n_rows) {
        ptx::named_barrier(1 + consumer_, 128);  // the rows before have been read
#pragma unroll
        for (int j = first / 2; j < (first + kStagedTokens) / 2; j += 4) {
          if (j * 2 >= kTokens) continue;
          ptx::store_matrix_x2_transposed(
              staging + staged_at<128>(j * 2 - first + lane % 8, warp() * 2 + lane / 8 % 2),
              pack_pair(d[j], d[j + 1], T{}), pack_pair(d[j + 2], d[j + 3], T{}));
        }
        ptx::named_barrier(1 + consumer_, 128);
        send(staging, int64_t{tile.place} + first, min(kStagedTokens, n_rows - first), column);
      }
    }
  }

  __device__ void send(const uint8_t* staging, int64_t place, int n_rows, int column) const {
    T* const out = static_cast<T*>(p_.out) + place * p_.out_dim + column;
    const int n_columns = min(64, p_.out_dim - column);
    for (int i = int(threadIdx.x) % 128; i < n_rows * 8; i += 128) {
      const int row = i / 8, chunk = i % 8;
      if (chunk * 8 >= n_columns) continue;
      T* const to = out + int64_t{row} * p_.out_dim + chunk * 8;
      const auto staged = [&](int at) {
        return *reinterpret_cast<const uint4*>(staging + staged_at<128>(row, at));
      };
      if (p_.out_in_fragment_order) {
        const uint4 low = staged(chunk & ~1), high = staged(chunk | 1);
        *reinterpret_cast<uint4*>(to) = in_fragment_order(low, high, chunk % 2);
      } else if (p_.out_dim % 8 == 0) {  // every row is aligned then
        *reinterpret_cast<uint4*>(to) = staged(chunk);
      } else {
        const T* const from = reinterpret_cast<const T*>(staging + staged_at<128>(row, chunk));
        for (int j = 0; j < min(8, n_columns - chunk * 8); ++j) to[j] = from[j];
      }
    }
  }

  Shared& s_;
  const ExpertGemmParams& p_;
  int consumer_;
  WgmmaPlace<Shared::kStages> at_;
};

#endif

// The same as expert_gemm_kernel by wgmma (sm_90a), for experts with many rows
//
//   x         of codes: its columns in fragment order (expert_columns.cuh); out may be so too
//   launch    persistent, a tile of at most kWgmmaTokens rows of x by kWgmmaRows rows of weights at
//             a time. One warpgroup is the producer (WgmmaProducer), two multiply (WgmmaConsumer)
//             with instructions of 136 or 72 columns; a third size would not get its registers
//   maths     as there: weights are operand A, and codes are dequantized in registers
//   moves     as there, with kWgmmaTokens for kExpertRows; bound by its 2 m n k flops
template <typename T, ExpertFormat kFormat, bool kSwiGlu>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    expert_wgmma_kernel(const __grid_constant__ ExpertGemmParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WgmmaShared<kFormat>;
  uint8_t* const raw = ptx::dynamic_shared();
  auto& s = *reinterpret_cast<Shared*>(raw);
  int* const tile_begins = reinterpret_cast<int*>(raw + sizeof(Shared));
  const int warpgroup = ptx::warpgroup_index();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::mbarrier_init(s.full + i, kWgmmaProducers);
      ptx::mbarrier_init(s.empty + i, kWgmmaConsumers / 32);
    }
    ptx::mbarrier_init_fence();
  }
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  count_tiles<kWgmmaTokens>(tile_begins, p.begins, p.n_experts);  // ends with a barrier
  const int n_tiles = tile_begins[p.n_experts] * p.column_blocks;

  if (warpgroup == 0) {
    ptx::shrink_registers<Shared::kIsFloat ? 88 : 56>();
    WgmmaProducer<T, kFormat, kSwiGlu> producer(s, p);
    for (int at = int(blockIdx.x); at < n_tiles; at += int(gridDim.x)) {
      producer.load(tile_at<kWgmmaTokens, kFewTokens>(at, tile_begins, p));
    }
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    return;
  }
  ptx::grow_registers<Shared::kIsFloat ? 208 : 224>();
  WgmmaConsumer<T, kFormat, kSwiGlu> consumer(s, p, warpgroup - 1);
  for (int at = int(blockIdx.x); at < n_tiles; at += int(gridDim.x)) {
    const ExpertTile tile = tile_at<kWgmmaTokens, kFewTokens>(at, tile_begins, p);
    if (tile.end - tile.place > kFewTokens) {
      consumer.template compute<kWgmmaTokens>(tile);
    } else {
      consumer.template compute<kFewTokens>(tile);
    }
    ptx::named_barrier(warpgroup, 128);  // for the compiler: see ptx::warpgroup_index
  }
#endif
}

}  // namespace minfer::cuda
