#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/math.h"
#include "kernels/cuda/bench/kernel_rig.h"

namespace minfer::cuda {
namespace {

KvLayer layer_from(TensorPool& pool, DType dtype, int64_t n_pages) {
  const Shape rows{n_pages, kBenchHeads, kPagePositions, kBenchHeadDim};
  const Shape scales{n_pages, kBenchHeads, kPagePositions};
  KvLayer layer = bench_layer(dtype, n_pages, pool.take(dtype, rows), pool.take(dtype, rows));
  if (dtype == DType::U8) {
    layer.key_scales = pool.take(DType::F32, scales);
    layer.value_scales = pool.take(DType::F32, scales);
  }
  return layer;
}
std::string attention_shape(int64_t n_tokens, DType cache) {
  return cat(n_tokens, " x ", kBenchHeads, " x ", kBenchHeadDim,
             cache == DType::U8 ? " int8" : " f16");
}

void time_prompts(KernelRig& rig) {
  for (DType dtype : {DType::F16, DType::U8}) {
    for (int64_t n : {512, 2048, 4096}) {
      const std::string shape = attention_shape(n, dtype);
      if (!rig.choice.wants("attention_prefill", shape)) continue;
      const KvLayer cache = random_kv_layer(dtype, kBenchHeads, kBenchHeadDim, pages_for(n));
      const DeviceTensor pages = pages_in_order(pages_for(n));
      const DeviceTensor q = random_tensor(DType::F16, {n, kBenchHeads, kBenchHeadDim}, 2);
      const DeviceTensor o = allocate_device(DType::F16, {n, kBenchHeads, kBenchHeadDim});
      const DeviceTensor workspace = allocate_device(
          DType::U8,
          {attention_prefill_workspace(dtype, kBenchHeads, kBenchHeadDim, pages_for(n))});
      constexpr int kTimes = 10;
      const double us = graph_us(rig.stream(), kTimes, [&] {
        for (int i = 0; i < kTimes; ++i)
          attention_prefill(rig.stream(), o, q, cache, first_place(pages), 0.09f, 0,
                            workspace.view().data);
      });
      const double flops = 2.0 * double(n) * double(n + 1) * double(kBenchHeads * kBenchHeadDim);
      const int64_t row_bytes = dtype == DType::U8 ? kBenchHeadDim + 4 : 2 * kBenchHeadDim;
      const double bytes = 2.0 * double(n * kBenchHeads) * double(2 * kBenchHeadDim + row_bytes);
      rig.choice.done({"attention_prefill", shape, Bound::Flops, us * 1e-6, {bytes, flops}});
    }
  }
}

void time_steps(KernelRig& rig) {
  constexpr int64_t kCapacity = 4096;
  const DeviceTensor pages = pages_in_order(pages_for(kCapacity));
  std::optional<TensorPool> pool;
  for (DType dtype : {DType::F16, DType::U8}) {
    for (int64_t context : {128, 512, 4096}) {
      const std::string shape = attention_shape(context, dtype);
      if (!rig.choice.wants("attention_decode", shape)) continue;
      const int64_t row_bytes = dtype == DType::U8 ? kBenchHeadDim + 4 : 2 * kBenchHeadDim;
      const double bytes = 2.0 * double(kBenchHeads * context * row_bytes);
      // Enough caches that each has been evicted from L2 when its turn comes again.
      const int n_caches = int(std::clamp(200e6 / bytes + 1, 2.0, 64.0));
      if (!pool) pool.emplace(int64_t{4} << 30, 2.0f);
      std::vector<KvLayer> caches;
      for (int i = 0; i < n_caches; ++i)
        caches.push_back(layer_from(*pool, dtype, pages_for(kCapacity)));
      const Shape heads{1, kBenchHeads, kBenchHeadDim};
      const DeviceTensor q = random_tensor(DType::F16, heads, 2);
      const DeviceTensor k = random_tensor(DType::F16, heads, 2);
      const DeviceTensor v = random_tensor(DType::F16, heads, 2);
      const DeviceTensor o = allocate_device(DType::F16, heads);
      const DeviceTensor table = constant_tensor({kCapacity, kBenchHeadDim / 2, 2}, 0.5f);
      const int64_t n_bytes =
          attention_decode_workspace(1, kBenchHeads, kBenchHeads, kBenchHeadDim, kCapacity);
      const DeviceTensor workspace = allocate_device(DType::U8, {n_bytes});
      MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
      const DeviceTensor pos = to_card(std::vector{narrow<int32_t>(context - 1)});
      const int n_launches = std::max(2 * n_caches, 8);
      const double us = graph_us(rig.stream(), n_launches, [&] {
        for (int i = 0; i < n_launches; ++i) {
          attention_decode(rig.stream(), {.out = o,
                                          .q = q,
                                          .k = k,
                                          .v = v,
                                          .rope = table,
                                          .cache = &caches[size_t(i % n_caches)],
                                          .pages = first_place(pages).pages,
                                          .pos = static_cast<const int*>(pos.view().data),
                                          .max_seq_len = kCapacity,
                                          .scale = 0.09f,
                                          .workspace = workspace.view().data});
        }
      });
      const double flops = 4.0 * double(context * kBenchHeads * kBenchHeadDim);
      rig.choice.done({"attention_decode", shape, Bound::Read, us * 1e-6, {bytes, flops}});
    }
  }
}

}  // namespace

void time_attention_kernels(KernelRig& rig) {
  time_prompts(rig);
  time_steps(rig);
}

}  // namespace minfer::cuda
