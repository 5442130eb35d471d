#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/matvec/params.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

// Who shares a multiprocessor, of 228 KB, where each block takes 1 KB more than it asks for. Beside
// the predecessor's block a kernel's can fill its ring while that one multiplies, if both fit. But
// where a multiprocessor is free two blocks of one kernel fit just as well, and leave another one
// without any: behind a product that needed the whole of each, others ran on 69 of 132
// multiprocessors, and a decode step took up to 1.4 times as long. So a block takes more than half
// of one, or is a guest, whose host in front has a block on every multiprocessor. In a layer they
// take turns: products that add to the residual stream are hosts, those that read it guests.
enum class Sharing { Guest, Host, Alone };

constexpr int kMoreThanHalf = 116'224;
constexpr int kHostLimit = 121'600;   // 11008 columns of one token, three stages of float weights
constexpr int kGuestLimit = 109'824;  // 4096 columns of one token, likewise

MatvecWeights weights_of(const Matrix& w) {
  return w.dtype == DType::U4   ? MatvecWeights::U4
         : w.dtype == DType::U8 ? MatvecWeights::U8
                                : MatvecWeights::Float;
}

MatvecScales scales_of(const Matrix& w) {
  const bool are_f32 = is_packed(w) && w.scales.view().dtype == DType::F32;
  if (w.mins) return are_f32 ? MatvecScales::F32Mins : MatvecScales::F16Mins;
  return are_f32 ? MatvecScales::F32 : MatvecScales::F16;
}

// All but tokens and stages.
MatvecParams params_of(Tensor x, const MatvecNorm* norm, std::span<const MatvecPart> parts,
                       Epilogue epilogue, DType half) {
  MatvecParams p{};
  const Matrix& w = *parts[0].w;
  p.norm = norm == nullptr ? InputNorm::None : norm->is_rms ? InputNorm::Rms : InputNorm::Layer;
  if (norm != nullptr) {
    p.norm_weight = norm->weight.data;
    p.norm_bias = norm->bias.data;
    p.eps = norm->eps;
  }
  p.epilogue = epilogue;
  p.out_is_f32 = parts[0].out.dtype == DType::F32;
  p.in_dim = narrow<int>(w.in_dim);
  int chunk_columns = kTileColumns;
  p.n_chunks = narrow<int>(ceil_div(w.in_dim, chunk_columns));
  p.slot_bytes = kChunkBytes;
  if (is_packed(w)) {
    const PackedLayout layout = layout_of(w);
    chunk_columns = layout.chunk_columns();
    p.n_chunks = narrow<int>(layout.n_chunks);
    p.row_tile_bytes = narrow<int>(layout.row_tile_bytes());
    p.scales_are_f32 = w.scales.view().dtype == DType::F32;
    if (layout.unit != 0) {
      p.unit_shift = std::countr_zero(unsigned(layout.unit));
      p.scale_bytes = chunk_columns / layout.unit * kTileRows * (p.scales_are_f32 ? 4 : 2);
      if (w.mins) p.min_bytes = chunk_columns / layout.unit * kTileRows * 4;
      p.slot_bytes += p.scale_bytes + p.min_bytes;
    }
    const bool subtracts = half == DType::F16;  // the zero code, by means of sums: fragments.cuh
    if (w.mins || subtracts) {
      p.sum_shift = layout.unit == 0 ? 7 : std::min(6, p.unit_shift);
      p.n_sums = (p.n_chunks * chunk_columns) >> p.sum_shift;
      p.sum_factor = (w.mins ? 1.0f : -float(1 << (layout.bits - 1))) * (subtracts ? 0x1p-24f : 1);
    }
  }
  p.x_columns = p.n_chunks * chunk_columns;
  p.x_stride = p.x_columns + 32;  // 16-byte reads of 8 tokens by 4 lanes meet no bank twice
  p.pairs = epilogue == Epilogue::SwiGlu;
  std::fill(std::begin(p.ends), std::end(p.ends), std::numeric_limits<int>::max());
  for (size_t i = 0; i < parts.size(); ++i) {
    const MatvecPart& part = parts[i];
    MatvecPartParams& to = p.parts[i];
    to.weights = part.w->storage.view().data;
    to.scales = part.w->scales.view().data;
    to.mins = static_cast<const float*>(part.w->mins.view().data);
    to.bias = part.bias.data;
    to.out_dim = narrow<int>(part.w->out_dim);
    const int n_row_tiles = narrow<int>(ceil_div(part.w->out_dim, kTileRows));
    if (epilogue == Epilogue::SwiGlu) {
      p.n_tiles = n_row_tiles;
    } else {
      p.begins[i] = p.n_tiles;
      p.n_tiles += n_row_tiles;
      if (i < std::size(p.ends)) p.ends[i] = p.n_tiles;
    }
  }
  return p;
}

// Measured for the products of 32 layers: alone, with more stages, 3 and 4 tokens take 2 to 10 %
// less time than side by side, and one of U4 takes 11 % more. A narrow residual stream makes hosts
// of few blocks, beside which a multiprocessor is free.
Sharing sharing_of(const MatvecParams& p, int n_multiprocessors) {
  const bool is_host = p.epilogue == Epilogue::Accumulate;
  const int width = is_host ? p.parts[0].out_dim : p.in_dim;
  if (p.n_tokens > 2 || width < n_multiprocessors * kTileRows * 3 / 4) return Sharing::Alone;
  return is_host ? Sharing::Host : Sharing::Guest;
}

// Chooses stages for p.n_tokens tokens: best is room for two blocks, with stages enough to keep the
// memory busy, then many stages. Sets shared_bytes; false where not even one stage fits.
bool fit_tokens(MatvecParams& p, int n_multiprocessors, int shared_limit) {
  p.sum_stride = p.n_sums == 0 ? 0 : (p.n_tokens + 1) / 2 * 2;
  p.warps_per_token = kMatvecWarps / int(std::bit_ceil(unsigned(p.n_tokens)));
  const bool is_float = p.row_tile_bytes == 0;
  // Measured with one token of U4 with F32 scales and minimums: the products of 32 layers take 1653
  // us where 11008 columns have room beside the next kernel's, 2051 where they have not. Two stages
  // are not enough for floats: two tokens take 3326 us so, alone 3169.
  const bool one_is_enough = p.n_tokens == 1 && kMatvecWarps * p.slot_bytes >= 48 * 1024;
  const int least_stages = is_float ? 3 : one_is_enough ? 1 : 2;
  const auto take = [&](int n_stages, Sharing sharing, int limit) {
    p.n_stages = n_stages;
    const int n_bytes = matvec_shared(p).total;
    p.shared_bytes = sharing == Sharing::Guest
                         ? n_bytes
                         : std::min(std::max(n_bytes, kMoreThanHalf), shared_limit);
    return n_bytes <= std::min(limit, shared_limit);
  };
  const Sharing sharing = sharing_of(p, n_multiprocessors);
  if (sharing != Sharing::Alone) {
    const int limit = sharing == Sharing::Host ? kHostLimit : kGuestLimit;
    for (int n_stages = 3; n_stages >= least_stages; --n_stages) {
      if (take(n_stages, sharing, limit)) return true;
    }
  }
  for (int n_stages = 4; n_stages >= 1; --n_stages) {
    if (take(n_stages, Sharing::Alone, shared_limit)) return true;
  }
  return false;
}

// Chooses tokens of one launch, all of them if they fit, else so that launches, which each read the
// weights, have as many. False where not even one token fits.
bool fit(MatvecParams& p, int64_t n_tokens, int n_multiprocessors) {
  const int n_tiles = (p.rounds + (p.n_longer > 0 ? 1 : 0)) * (p.pairs ? 2 : 1);  // of a block
  p.n_partials = ((n_tiles - 1) << p.team_shift) + kMatvecWarps;  // matvec_kernel.cuh
  const int shared_limit = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  for (int64_t n_launches = 1; n_launches <= n_tokens; ++n_launches) {
    p.n_tokens = narrow<int>(ceil_div(n_tokens, n_launches));
    if (fit_tokens(p, n_multiprocessors, shared_limit)) return true;
  }
  return false;
}

// Parts of one format, all in one launch unless the tokens' inputs do not fit in shared memory.
bool launch_parts(cudaStream_t stream, Tensor x, const MatvecNorm* norm,
                  std::span<const MatvecPart> parts, Epilogue epilogue, DType half,
                  const MatvecTuning& tuning) {
  const Matrix& w = *parts[0].w;
  if (!is_packed(w) && (w.dtype != half || w.in_dim % 8 != 0)) return false;
  if (w.in_dim > (1 << 20)) return false;
  MatvecParams p = params_of(x, norm, parts, epilogue, half);
  const int n_multiprocessors = card_attribute(cudaDevAttrMultiProcessorCount);
  const int grid = std::min(p.n_tiles, n_multiprocessors);
  p.team_shift = is_packed(w) ? tuning.team_shift_packed : tuning.team_shift_float;
  p.trigger_left = tuning.trigger_left;
  p.rounds = p.n_tiles / grid;
  p.n_longer = p.n_tiles % grid;
  if (!fit(p, x.shape[0], n_multiprocessors)) return false;

  int scales_in_tile = 0;
  if (p.scale_bytes != 0) scales_in_tile = std::max(1, kTileColumns >> p.unit_shift);
  const auto kernel = visit_half(half, [&]<typename T>() {
    return matvec_kernel_of<T>(weights_of(w), scales_in_tile, scales_of(w));
  });
  // The largest carve-out, whatever the block needs: blocks of two kernels are to share a
  // multiprocessor, which cannot change it while one runs.
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
  MINFER_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.shared_bytes));
  const int64_t at_once = p.n_tokens;
  for (int64_t token = 0; token < x.shape[0]; token += at_once) {
    p.n_tokens = narrow<int>(std::min(at_once, x.shape[0] - token));
    p.x = x.rows(token, p.n_tokens).data;
    for (size_t i = 0; i < parts.size(); ++i) {
      p.parts[i].out = parts[i].out ? parts[i].out.rows(token, p.n_tokens).data : nullptr;
    }
    launch(kernel, dim3(unsigned(grid)), dim3(kMatvecThreads), size_t(p.shared_bytes), stream, p);
  }
  return true;
}

void check(Tensor x, const MatvecNorm* norm, std::span<const MatvecPart> parts, Epilogue epilogue,
           DType half) {
  MINFER_CHECK(x.shape.rank == 2 && x.shape[0] >= 1 && x.shape[0] <= kMaxMatvecTokens, "matvec: x ",
               x.shape);
  MINFER_CHECK(!parts.empty() && parts.size() <= size_t(kMaxMatvecParts), "matvec: ", parts.size(),
               " parts");
  const bool pairs = epilogue == Epilogue::SwiGlu;
  MINFER_CHECK(!pairs || (parts.size() == 2 && parts[0].w->out_dim == parts[1].w->out_dim),
               "matvec: SwiGlu needs gate and up");
  const Shape in{x.shape[1]};
  MINFER_CHECK(
      norm == nullptr || (norm->weight.shape == in && norm->weight.dtype == half &&
                          (!norm->bias || (norm->bias.shape == in && norm->bias.dtype == half))),
      "matvec: a norm of ", norm == nullptr ? Shape{} : norm->weight.shape, " for x ", x.shape);
  for (size_t i = 0; i < parts.size(); ++i) {
    const MatvecPart& part = parts[i];
    const Shape out{x.shape[0], part.w->out_dim};
    MINFER_CHECK(part.w->in_dim == x.shape[1], "matvec: x ", x.shape, ", w [", part.w->out_dim,
                 ", ", part.w->in_dim, "]");
    MINFER_CHECK((pairs && i == 1) || part.out.shape == out, "matvec: out ", part.out.shape,
                 ", expected ", out);
    MINFER_CHECK(
        !part.bias || (part.bias.shape == Shape{part.w->out_dim} && part.bias.dtype == half),
        "matvec: bias ", part.bias.shape, " for ", part.w->out_dim, " rows");
    const DType dtype = part.out.dtype;
    MINFER_CHECK((pairs && i == 1) ||
                     (epilogue == Epilogue::Accumulate
                          ? dtype == DType::F32
                          : dtype == half || (dtype == DType::F32 && epilogue == Epilogue::Store)),
                 "matvec: out of type ", dtype);
  }
}

DType half_type(Tensor x, const MatvecNorm* norm) {
  const DType half = norm == nullptr ? x.dtype : norm->weight.dtype;
  MINFER_CHECK(
      (half == DType::F16 || half == DType::BF16) && (norm == nullptr || x.dtype == DType::F32),
      "matvec: x of type ", x.dtype);
  return half;
}

}  // namespace

void matvec(cudaStream_t stream, Tensor x, const MatvecNorm* norm,
            std::span<const MatvecPart> parts, Epilogue epilogue) {
  matvec_as(stream, x, norm, parts, epilogue, {});
}

void matvec_as(cudaStream_t stream, Tensor x, const MatvecNorm* norm,
               std::span<const MatvecPart> parts, Epilogue epilogue, const MatvecTuning& tuning) {
  const DType half = half_type(x, norm);
  check(x, norm, parts, epilogue, half);
  if (epilogue == Epilogue::SwiGlu) {
    if (!same_format(*parts[0].w, *parts[1].w) ||
        !launch_parts(stream, x, norm, parts, epilogue, half, tuning)) {
      matvec_plain(stream, x, norm, parts, epilogue);
    }
    return;
  }
  // Runs of parts that a launch can take together.
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    for (end = begin + 1; end < parts.size() && same_format(*parts[begin].w, *parts[end].w) &&
                          parts[begin].out.dtype == parts[end].out.dtype;) {
      ++end;
    }
    const auto run = parts.subspan(begin, end - begin);
    if (!launch_parts(stream, x, norm, run, epilogue, half, tuning)) {
      matvec_plain(stream, x, norm, run, epilogue);
    }
  }
}

}  // namespace minfer::cuda
