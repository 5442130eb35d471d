#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/cuda/gemv/params.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {

GemvWeights weights_of(const Matrix& w) {
  return is_packed(w) ? weights_of(code_form_of(w)) : GemvWeights::Float;
}

namespace {

// How the blocks of successive kernels share an SM, which has 228 KB of shared memory and takes 1
// KB more for each block than it asks for. If a kernel's block fits beside its predecessor's block,
// it fills its ring while that one still multiplies (PDL). But on a free SM, two blocks of one
// kernel fit as well, and another SM then gets none: behind a GEMV whose blocks filled whole SMs,
// others ran on 69 of 132 SMs, and a decode step took up to 1.4 times as long. So a block takes
// more than half of an SM (Host, Alone), unless it is a Guest: its predecessor is then a Host,
// which has a block on every SM. GEMVs of a layer alternate: those that add to the residual stream
// are Hosts, those that read it are Guests. Experts have it the other way round: gate and up are a
// Host, down is a Guest, and so what follows it is a Host, too.
enum class Sharing { Guest, Host, Alone };

constexpr int kMoreThanHalf = 116'224;
// Each fits one token with three stages of float weights: hosts 11008 columns, guests 4096.
constexpr int kHostLimit = 121'600;
constexpr int kGuestLimit = 109'824;

GemvScales scales_of(const Matrix& w) {
  const bool are_f32 = is_packed(w) && w.scales.view().dtype == DType::F32;
  if (is_packed(w) && w.scales.view().dtype == DType::U8) {
    return w.mins ? GemvScales::ProductsMins : GemvScales::Products;
  }
  if (w.mins) return are_f32 ? GemvScales::F32Mins : GemvScales::F16Mins;
  return are_f32 ? GemvScales::F32 : GemvScales::F16;
}

// Sets all parameters except those that depend on the number of tokens and stages.
GemvParams params_of(const GemvNorm* norm, std::span<const GemvPart> parts, Epilogue epilogue,
                     DType half) {
  GemvParams p{};
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
  p.slot_bytes = chunk_bytes_of(weights_of(w));
  if (is_packed(w)) {
    const PackedLayout layout = layout_of(w);
    chunk_columns = layout.chunk_columns();
    p.n_chunks = narrow<int>(layout.n_chunks);
    p.row_tile_bytes = narrow<int>(layout.row_tile_bytes());
    p.scales_are_f32 = w.scales.view().dtype == DType::F32;
    p.table = table_bytes_of(w);
    if (layout.unit != 0) {
      p.unit_shift = std::countr_zero(unsigned(layout.unit));
      p.scale_bytes = chunk_columns / layout.unit * kTileRows * (p.scales_are_f32 ? 4 : 2);
      if (layout.products) {
        p.scale_bytes = layout.record_bytes();
      } else if (w.mins) {
        p.min_bytes = chunk_columns / layout.unit * kTileRows * 4;
      }
      p.slot_bytes += p.scale_bytes + p.min_bytes;
    }
    const auto [has_sums, are_subnormal] = visit_half(half, [&]<typename T>() {
      const GemvWeights weights = weights_of(w);
      const GemvScales scales = scales_of(w);
      return std::pair(needs_sums<T>(weights, scales), !subtracts<T>(weights, scales));
    });
    if (has_sums) {  // codes that are operands as they are, are subnormal: fragments.cuh
      p.sum_shift = layout.unit == 0 ? 7 : std::min(6, p.unit_shift);
      p.n_sums = (p.n_chunks * chunk_columns) >> p.sum_shift;
      p.sum_factor = (w.mins ? 1.0f : -float(view_of(w).zero())) * (are_subnormal ? 0x1p-24f : 1);
    }
  }
  p.x_columns = p.n_chunks * chunk_columns;
  p.x_stride = p.x_columns + 32;  // no bank conflicts in 16-byte reads of 8 tokens by 4 lanes
  p.pairs = is_gated(epilogue);
  std::fill(std::begin(p.ends), std::end(p.ends), std::numeric_limits<int>::max());
  for (size_t i = 0; i < parts.size(); ++i) {
    const GemvPart& part = parts[i];
    GemvPartParams& to = p.parts[i];
    to.weights = part.w->storage.view().data;
    to.scales = part.w->scales.view().data;
    to.mins = static_cast<const float*>(part.w->mins.view().data);
    to.bias = part.bias.data;
    to.out_dim = narrow<int>(part.w->out_dim);
    const int n_row_tiles = narrow<int>(ceil_div(part.w->out_dim, kTileRows));
    if (is_gated(epilogue)) {
      p.n_tiles = n_row_tiles;
    } else {
      p.begins[i] = p.n_tiles;
      p.n_tiles += n_row_tiles;
      if (i < std::size(p.ends)) p.ends[i] = p.n_tiles;
    }
  }
  return p;
}

// With a narrow residual stream, Hosts have too few blocks for all SMs, so that two Guests could
// meet on a free one.
Sharing sharing_of(const GemvParams& p, bool behind_guest, int n_sms) {
  const bool is_host = behind_guest || p.epilogue == Epilogue::Accumulate;
  const int width = is_host ? p.parts[0].out_dim : p.in_dim;
  if (width < n_sms * kTileRows * 3 / 4) return Sharing::Alone;
  return is_host ? Sharing::Host : Sharing::Guest;
}

// Picks the stages for p.n_tokens tokens and sets shared_bytes. It prefers to share the SM, with
// enough stages to keep the memory busy; else it takes as many stages as fit, at most kMostStages
// or 2. Returns false if not even one stage fits.
bool fit_tokens(GemvParams& p, Sharing sharing, int shared_limit) {
  p.sum_stride = p.n_sums == 0 ? 0 : (p.n_tokens + 1) / 2 * 2;
  p.tokens_shift = std::bit_width(unsigned(p.n_tokens) - 1);
  const bool is_float = p.row_tile_bytes == 0;
  // Measured for the GEMVs of 32 layers: one token of U4 with F32 scales and minimums takes 1653 us
  // if the GEMV of 11008 columns shares the SM with the next kernel, else 2051 us. For floats, two
  // stages are too few: two tokens take 3326 us with two shared stages, 3169 us alone.
  const bool one_is_enough = p.n_tokens == 1 && kGemvWarps * p.slot_bytes >= 48 * 1024;
  const int least_stages = is_float ? 3 : one_is_enough ? 1 : 2;
  // The tokens of experts are short, and what they win by an early begin is more.
  const bool are_several = p.n_tokens > 2 && p.experts.n_active == 0;
  const bool are_several_of_codes = are_several && !is_float;
  const auto take = [&](int n_stages, Sharing sharing, int limit) {
    p.n_stages = n_stages;
    p.ring_bytes = n_stages * p.slot_bytes;
    // A block of several tokens mostly begins when its predecessor has ended, or nearly: its input
    // would come behind all that the ring copies. Floats have longer runs, and win nothing.
    p.early_stages = are_several_of_codes ? 1 : n_stages;
    const int n_bytes = gemv_shared(p, input_of(p)).total;
    p.shared_bytes = sharing == Sharing::Guest
                         ? n_bytes
                         : std::min(std::max(n_bytes, kMoreThanHalf), shared_limit);
    return n_bytes <= std::min(limit, shared_limit);
  };
  // Measured for the GEMVs of 32 layers: compared with shared SMs, Alone with more stages takes 2
  // to 10 % less time for 3 and 4 tokens, but 11 % more for one token of U4. A Host whose ring
  // holds all that it reads is an exception: wo then begins beside attention.
  if (are_several) {
    const int n_steps = ceil_div(most_tiles(p) * p.n_chunks, kGemvWarps);
    if (are_several_of_codes && sharing == Sharing::Host && n_steps <= 3 &&
        take(n_steps, Sharing::Host, kHostLimit)) {
      return true;
    }
    sharing = Sharing::Alone;
  }
  if (sharing != Sharing::Alone) {
    const int limit = sharing == Sharing::Host ? kHostLimit : kGuestLimit;
    for (int n_stages = 3; n_stages >= least_stages; --n_stages) {
      if (take(n_stages, sharing, limit)) return true;
    }
  }
  // With two stages behind a norm, a pass of 4 tokens of INT4 takes 6 % less time than with four:
  // they leave attention room beside q, k and v. Gate and up, and 8 tokens, are 1 % faster, too.
  const int most_stages = are_several_of_codes && p.norm != InputNorm::None ? 2 : kMostStages;
  for (int n_stages = most_stages; n_stages >= 1; --n_stages) {
    if (take(n_stages, Sharing::Alone, shared_limit)) return true;
  }
  return false;
}

// Picks the tokens per launch: all if they fit in shared memory, else equal batches over the fewest
// launches, since each launch rereads the weights. Returns false if not even one token fits.
bool fit(GemvParams& p, int64_t n_tokens, Sharing sharing) {
  p.n_partials =
      ((most_tiles(p) - 1) << team_shift(p.row_tile_bytes != 0)) + kGemvWarps;  // see GemvRun
  const int shared_limit = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  for (int64_t n_launches = 1; n_launches <= n_tokens; ++n_launches) {
    p.n_tokens = narrow<int>(ceil_div(n_tokens, n_launches));
    if (fit_tokens(p, sharing, shared_limit)) return true;
  }
  return false;
}

// How the tiles are shared out to `grid` blocks.
void set_rounds(GemvParams& p, int grid, int tiles_of_round) {
  p.rounds = p.n_tiles / grid;
  p.n_longer = p.n_tiles % grid;
  p.tiles_of_round = tiles_of_round;
  p.by_chunks = Divisor(p.n_chunks);
  const int steps_of_round = tiles_of_round * p.n_chunks;
  p.by_steps[0] = Divisor(p.rounds * steps_of_round);
  p.by_steps[1] = Divisor((p.rounds + 1) * steps_of_round);
}

int scales_in_tile(const GemvParams& p) {
  return p.scale_bytes == 0 ? 0 : std::max(1, kTileColumns >> p.unit_shift);
}

// Always the largest shared-memory carve-out: an SM cannot change it while a block runs, and blocks
// of two kernels must be able to share the SM.
void set_shared_memory(void (*kernel)(GemvParams), const GemvParams& p) {
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
  MINFER_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.shared_bytes));
}

bool takes(const Matrix& w, DType half) {
  if (scales_of(w) >= GemvScales::Products && !has_known_products(w)) return false;
  if (w.in_dim % 8 != 0 || (!is_packed(w) && w.dtype != half)) return false;
  if (weights_of(w) == GemvWeights::Table && layout_of(w).unit != kTileColumns / 2) return false;
  return w.in_dim <= (1 << 20);
}

// Computes parts of one format in one launch, or in several if the tokens' inputs do not fit in
// shared memory. Returns false if the kernel cannot compute them.
bool launch_parts(cudaStream_t stream, Tensor x, const GemvNorm* norm,
                  std::span<const GemvPart> parts, Epilogue epilogue, DType half,
                  bool behind_guest) {
  const Matrix& w = *parts[0].w;
  if (!takes(w, half)) return false;
  GemvParams p = params_of(norm, parts, epilogue, half);
  const int n_sms = card_attribute(cudaDevAttrMultiProcessorCount);
  const int grid = std::min(p.n_tiles, n_sms);
  set_rounds(p, grid, p.pairs ? 2 : 1);
  if (!fit(p, x.shape[0], sharing_of(p, behind_guest, n_sms))) return false;

  const int64_t at_once = p.n_tokens;
  for (int64_t token = 0; token < x.shape[0]; token += at_once) {
    p.n_tokens = narrow<int>(std::min(at_once, x.shape[0] - token));
    p.by_tokens = Divisor(p.n_tokens);
    p.x = x.rows(token, p.n_tokens).data;
    for (size_t i = 0; i < parts.size(); ++i) {
      p.parts[i].out = parts[i].out ? parts[i].out.rows(token, p.n_tokens).data : nullptr;
    }
    const auto kernel = visit_half(half, [&]<typename T>() {
      return gemv_kernel_of<T>(weights_of(w), scales_in_tile(p), scales_of(w), use_of(p));
    });
    set_shared_memory(kernel, p);
    launch(kernel, dim3(unsigned(grid)), dim3(kGemvThreads), size_t(p.shared_bytes), stream, p);
  }
  return true;
}

void check(Tensor x, const GemvNorm* norm, std::span<const GemvPart> parts, Epilogue epilogue,
           DType half) {
  MINFER_CHECK(x.shape.rank == 2 && x.shape[0] >= 1 && x.shape[0] <= kMaxGemvTokens, "gemv: x ",
               x.shape);
  MINFER_CHECK(!parts.empty() && parts.size() <= size_t(kMaxGemvParts), "gemv: ", parts.size(),
               " parts");
  const bool pairs = is_gated(epilogue);
  MINFER_CHECK(!pairs || (parts.size() == 2 && parts[0].w->out_dim == parts[1].w->out_dim),
               "gemv: a gate needs gate and up");
  const Shape in{x.shape[1]};
  MINFER_CHECK(
      norm == nullptr || (norm->weight.shape == in && norm->weight.dtype == half &&
                          (!norm->bias || (norm->bias.shape == in && norm->bias.dtype == half))),
      "gemv: a norm of ", norm == nullptr ? Shape{} : norm->weight.shape, " for x ", x.shape);
  for (size_t i = 0; i < parts.size(); ++i) {
    const GemvPart& part = parts[i];
    const Shape out{x.shape[0], part.w->out_dim};
    MINFER_CHECK(part.w->in_dim == x.shape[1], "gemv: x ", x.shape, ", w [", part.w->out_dim, ", ",
                 part.w->in_dim, "]");
    MINFER_CHECK((pairs && i == 1) || part.out.shape == out, "gemv: out ", part.out.shape,
                 ", expected ", out);
    MINFER_CHECK(
        !part.bias || (part.bias.shape == Shape{part.w->out_dim} && part.bias.dtype == half),
        "gemv: bias ", part.bias.shape, " for ", part.w->out_dim, " rows");
    const DType dtype = part.out.dtype;
    MINFER_CHECK((pairs && i == 1) ||
                     (epilogue == Epilogue::Accumulate
                          ? dtype == DType::F32
                          : dtype == half || (dtype == DType::F32 && epilogue == Epilogue::Store)),
                 "gemv: out of type ", dtype);
  }
}

DType half_type(Tensor x, const GemvNorm* norm) {
  const DType half = norm == nullptr ? x.dtype : norm->weight.dtype;
  MINFER_CHECK(
      (half == DType::F16 || half == DType::BF16) && (norm == nullptr || x.dtype == DType::F32),
      "gemv: x of type ", x.dtype);
  return half;
}

}  // namespace

void gemv(cudaStream_t stream, Tensor x, const GemvNorm* norm, std::span<const GemvPart> parts,
          Epilogue epilogue, bool behind_guest) {
  const DType half = half_type(x, norm);
  check(x, norm, parts, epilogue, half);
  if (is_gated(epilogue)) {
    if (!same_format(*parts[0].w, *parts[1].w) ||
        !launch_parts(stream, x, norm, parts, epilogue, half, behind_guest)) {
      gemv_plain(stream, x, norm, parts, epilogue);
    }
    return;
  }
  // Groups successive parts that one launch can compute.
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    for (end = begin + 1; end < parts.size() && same_format(*parts[begin].w, *parts[end].w) &&
                          parts[begin].out.dtype == parts[end].out.dtype;) {
      ++end;
    }
    const auto run = parts.subspan(begin, end - begin);
    if (!launch_parts(stream, x, norm, run, epilogue, half, behind_guest)) {
      gemv_plain(stream, x, norm, run, epilogue);
    }
  }
}

namespace {

// The GEMV of one linear layer of the chosen experts, or of gate and up.
struct ExpertLaunch {
  GemvParams params{};
  void (*kernel)(GemvParams) = nullptr;
  int grid_of_row = 0;
};

// Returns none if the kernel cannot compute it.
//   n_tokens  rows of x for one row of the step: 1, or one for each expert
//   shares    unless it does not fit so
std::optional<ExpertLaunch> expert_launch(Tensor x, const GemvNorm* norm, ExpertMatrices first,
                                          const ExpertMatrices* up, Tensor out, int64_t n_tokens,
                                          int n_active, DType half, Sharing shares) {
  const Matrix& w = *first.first;
  if (!takes(w, half)) return std::nullopt;
  const GemvPart parts[] = {{&w, out, {}}, {up != nullptr ? up->first : nullptr, out, {}}};
  const Epilogue epilogue = up != nullptr ? Epilogue::SwiGlu : Epilogue::Accumulate;
  ExpertLaunch launch;
  GemvParams& p = launch.params;
  p = params_of(norm, std::span(parts).first(up != nullptr ? 2 : 1), epilogue, half);
  p.x = x.data;
  p.parts[0].out = out.data;
  p.experts.n_active = n_active;
  p.experts.places[0] = first.places;
  p.experts.places[1] = up != nullptr ? up->places : nullptr;
  p.experts.row_tiles = p.n_tiles;
  if (up != nullptr) p.n_tiles *= n_active;  // those of all experts, one after the other
  const int n_sms = card_attribute(cudaDevAttrMultiProcessorCount);
  launch.grid_of_row = p.experts.blocks_of_row = std::min(p.n_tiles, n_sms);
  set_rounds(p, launch.grid_of_row, up != nullptr ? 2 : n_active);
  p.experts.by_blocks_of_row = Divisor(p.experts.blocks_of_row);
  p.experts.by_row_tiles = Divisor(p.experts.row_tiles);
  p.experts.by_tiles_of_round = Divisor(p.tiles_of_round);
  if (!fit(p, n_tokens, shares) || p.n_tokens != n_tokens) return std::nullopt;
  launch.kernel = visit_half(half, [&]<typename T>() {
    return expert_gemv_kernel_of<T>(weights_of(w), scales_in_tile(p), scales_of(w), use_of(p));
  });
  return launch;
}

// Gate and up, then down, which copies its weights while the first multiplies if its blocks fit
// beside those.
std::optional<std::array<ExpertLaunch, 2>> expert_launches(const ExpertStep& step, DType half) {
  const int n_active = narrow<int>(step.spec.n_active_experts);
  if (!step.spec.has_swiglu() || !step.norm.is_rms || n_active > kMaxGemvTokens) {
    return std::nullopt;
  }
  const ExpertMatrices gate = matrices_of(step.moe, ExpertPart::Gate);
  const ExpertMatrices up = matrices_of(step.moe, ExpertPart::Up);
  const ExpertMatrices down = matrices_of(step.moe, ExpertPart::Down);
  if (!same_format(*gate.first, *up.first)) return std::nullopt;
  const auto first =
      expert_launch(step.x, &step.norm, gate, &up, step.hidden, 1, n_active, half, Sharing::Host);
  if (!first) return std::nullopt;
  const bool is_host = first->params.shared_bytes <= kHostLimit &&
                       first->grid_of_row == card_attribute(cudaDevAttrMultiProcessorCount);
  const auto second = expert_launch(step.hidden, nullptr, down, nullptr, step.x, n_active, n_active,
                                    half, is_host ? Sharing::Guest : Sharing::Alone);
  if (!second) return std::nullopt;
  return std::array{*first, *second};
}

}  // namespace

bool expert_gemv_takes(const MoeWeights& moe, const LayerSpec& spec, DType half) {
  const int64_t dim = moe.experts.front().w_up.weight.in_dim;
  const GemvNorm norm{
      .weight = Tensor{nullptr, half, {dim}}, .bias = {}, .is_rms = spec.norm == NormKind::Rms};
  const ExpertStep step{.x = Tensor{nullptr, DType::F32, {1, dim}},
                        .norm = norm,
                        .logits = {},
                        .hidden = Tensor{nullptr, half, {1, spec.n_active_experts, spec.ffn_dim}},
                        .moe = moe,
                        .spec = spec};
  return expert_launches(step, half).has_value();
}

void expert_gemv(cudaStream_t stream, const ExpertStep& step) {
  const LayerSpec& spec = step.spec;
  const DType half = step.hidden.dtype;
  const int64_t n_rows = step.x.shape[0], n_active = spec.n_active_experts;
  MINFER_CHECK(step.x.dtype == DType::F32 && step.norm.weight.dtype == half &&
                   step.logits.shape == Shape({n_rows, spec.n_experts}) &&
                   step.logits.dtype == DType::F32 &&
                   step.hidden.shape == Shape({n_rows, n_active, spec.ffn_dim}),
               "expert_gemv: x ", step.x.shape, ", logits ", step.logits.shape, ", hidden ",
               step.hidden.shape);
  const auto launches = expert_launches(step, half);
  MINFER_CHECK(launches.has_value(), "expert_gemv of experts that it does not take");
  for (const ExpertLaunch& each : *launches) {
    GemvParams p = each.params;
    p.experts.logits = data_of<const float>(step.logits);
    p.experts.router = router_of(spec, step.moe.router_bias, step.moe.router_correction);
    p.experts.clamp = spec.swiglu_clamp();
    set_shared_memory(each.kernel, p);
    launch(each.kernel, dim3(narrow<unsigned>(each.grid_of_row * n_rows)), dim3(kGemvThreads),
           size_t(p.shared_bytes), stream, p);
  }
}

}  // namespace minfer::cuda
