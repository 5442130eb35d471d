#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {

bool expert_gemm(cudaStream_t stream, const ExpertCall& call) {
  ExpertGemmParams p;
  if (!set_params(p, call)) return false;
  const ExpertGemmKernel kernel = visit_half(call.x.dtype, [&]<typename T>() {
    return expert_gemm_kernel_of<T>(format_of(*call.w.first), call.up != nullptr);
  });
  if (!fits_card(kernel, call.routing.n_experts)) return false;
  launch_expert_gemm(stream, kernel, p, call.routing);
  return true;
}

int64_t shared_bytes_of(const ExpertGemmKernel& kernel, int64_t n_experts) {
  return kernel.shared_bytes + (n_experts + 1) * int64_t{sizeof(int)};
}
bool fits_card(const ExpertGemmKernel& kernel, int64_t n_experts) {
  return shared_bytes_of(kernel, n_experts) <=
         card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

ExpertFormat format_of(const Matrix& w) {
  const bool has_products = is_packed(w) && layout_of(w).products;
  const bool is_plain = w.scales && w.scales.view().dtype == DType::F16 && !w.mins;
  switch (weights_of(w)) {
    case GemvWeights::Float:
      return ExpertFormat::Float;
    case GemvWeights::U2:
      return ExpertFormat::U2Products;
    case GemvWeights::U3:
      return ExpertFormat::U3Products;
    case GemvWeights::U4:
      if (has_products) return ExpertFormat::U4Products;
      return is_plain ? ExpertFormat::U4Plain : ExpertFormat::U4;
    case GemvWeights::U5:
      return ExpertFormat::U5Products;
    case GemvWeights::U6:
      return ExpertFormat::U6Products;
    case GemvWeights::U8:
      return is_plain ? ExpertFormat::U8Plain : ExpertFormat::U8;
    case GemvWeights::Table:
      if (has_products) return ExpertFormat::TableProducts;
      MINFER_CHECK(is_plain || w.table == CodeTable::E2m1, "a table with scales that no type has");
      return is_plain ? ExpertFormat::TablePlain : ExpertFormat::TablePowers;
  }
  throw Error(ErrorKind::Internal, "experts of an unknown format");
}

bool set_params(ExpertGemmParams& p, const ExpertCall& call) {
  const Matrix& w = *call.w.first;
  const Routing& r = call.routing;
  const bool is_swiglu = call.up != nullptr;
  if (w.in_dim % 8 != 0 || !aligned16(call.x) || w.in_dim > (1 << 20)) return false;
  if (is_swiglu && !(same_format(w, *call.up->first) && w.out_dim == call.up->first->out_dim)) {
    return false;
  }
  if (!is_packed(w) && w.dtype != call.x.dtype) return false;
  p = {};
  p.x = call.x.data;
  p.out = call.out.data;
  p.places = call.w.places;
  p.up_places = is_swiglu ? call.up->places : nullptr;
  p.clamp = call.clamp;
  p.begins = r.begins;
  p.pairs = r.pairs;
  p.n_experts = narrow<int>(r.n_experts);
  p.n_active = narrow<int>(r.n_active);
  p.x_by_place = call.x_by_place;
  p.in_dim = narrow<int>(w.in_dim);
  p.out_dim = narrow<int>(w.out_dim);
  p.n_steps = narrow<int>(ceil_div(w.in_dim, kTileColumns));
  p.n_row_tiles = narrow<int>(ceil_div(w.out_dim, kTileRows));
  p.column_blocks = narrow<int>(ceil_div(p.n_row_tiles, kExpertWarps * (is_swiglu ? 1 : 2)));
  if (is_packed(w)) {
    const PackedLayout layout = layout_of(w);
    p.row_tile_bytes = layout.row_tile_bytes();
    p.n_units = narrow<int>(layout.n_units);
    const int of_step = std::min(layout.unit, kTileColumns);
    p.units_of_step = layout.unit == 0 ? 1 : kTileColumns / of_step;
    p.unit_shift = unit_shift_of(of_step);
    p.step_shift = layout.unit == 0 ? 31 : unit_shift_of(layout.unit / of_step);
    p.scales_are_f32 = w.scales.view().dtype == DType::F32;
    p.has_mins = bool(w.mins);
    if (layout.products) {
      p.record_bytes = layout.record_bytes();
      p.record_scale_bytes = layout.record_scale_bytes();
      MINFER_CHECK(has_known_products(w), "products that no type of GGUF has");
    }
    p.table = table_bytes_of(w);
  }
  return true;
}

void launch_expert_gemm(cudaStream_t stream, const ExpertGemmKernel& kernel,
                        const ExpertGemmParams& p, const Routing& r) {
  const int64_t shared_bytes = shared_bytes_of(kernel, r.n_experts);
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         narrow<int>(shared_bytes)));
  // At most as many tiles as whole ones and one more for each expert.
  const int64_t n_pairs = r.n_pairs();
  const int64_t most_tiles =
      (n_pairs / kernel.rows_of_tile + std::min(r.n_experts, n_pairs)) * p.column_blocks;
  const int64_t n_sms = card_attribute(cudaDevAttrMultiProcessorCount);
  launch(kernel.kernel, dim3(narrow<unsigned>(std::min(most_tiles, n_sms))),
         dim3(unsigned(kernel.n_threads)), size_t(shared_bytes), stream, p);
}

}  // namespace minfer::cuda
