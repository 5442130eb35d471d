#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/bench/kernel_rig.h"
#include "kernels/cuda/sampling/choose_token.h"

namespace minfer::cuda {
namespace {

// Memory-bound kernels get this many rows. With 4096 columns they exceed L2, so that DRAM is timed,
// and the start and the end of a launch matter little.
constexpr int64_t kTokens = 8192;
constexpr float kEps = 1e-5f;

// A tensor that a launch reads or writes once; if `moves` is 2, it does both.
struct Operand {
  DType dtype;
  Shape shape;
  bool is_written = false;
  int moves = 1;

  double bytes() const { return double(moves) * double(bytes_of(dtype, shape)); }
};

Operand in(DType dtype, const Shape& shape) { return {dtype, shape}; }
Operand out(DType dtype, const Shape& shape) { return {dtype, shape, true}; }
Operand in_out(DType dtype, const Shape& shape) { return {dtype, shape, true, 2}; }

// "2048 x 4096 f32"
std::string shape_text(const Operand& operand) {
  std::string text;
  for (int i = 0; i < operand.shape.rank; ++i) text += cat(i > 0 ? " x " : "", operand.shape[i]);
  return text + (operand.dtype == DType::F32 ? " f32" : " f16");
}

class RowKernels {
 public:
  explicit RowKernels(KernelRig& rig) : rig_(rig) {}

  void run() {
    norms();
    elements();
    rows_of_logits();
    choices();
    positions();
    lookups();
  }

 private:
  // Times kernel(tensors), where `tensors` are the operands in order. Each launch gets new memory.
  // It makes element_flops operations for each element of the first operand.
  template <typename F>
  void stream_through(const char* name, const std::vector<Operand>& operands, Bound bound,
                      double element_flops, const F& kernel) {
    const std::string shape = shape_text(operands.front());
    if (!rig_.choice.wants(name, shape)) return;
    double bytes = 0;
    for (const Operand& o : operands) bytes += o.bytes();
    const double us = graph_us(rig_.stream(), kBenchLaunches, [&] {
      for (int i = 0; i < kBenchLaunches; ++i) {
        std::vector<DeviceTensor> memory;
        std::vector<Tensor> tensors;
        for (const Operand& o : operands) {
          memory.push_back((o.is_written ? rig_.outputs : rig_.inputs).take(o.dtype, o.shape));
          tensors.push_back(memory.back());
        }
        kernel(tensors);
      }
    });
    const double flops = element_flops * double(operands.front().shape.n_elements());
    rig_.choice.done({name, shape, bound, us * 1e-6, {bytes, flops}});
  }
  template <typename F>
  void stream_through(const char* name, const std::vector<Operand>& operands, double element_flops,
                      const F& kernel) {
    stream_through(name, operands, Bound::Copy, element_flops, kernel);
  }

  void norms() {
    for (const int64_t dim : {kBenchDim, 2 * kBenchDim}) {
      const Shape rows{kTokens, dim}, row{dim};
      const Operand x = in(DType::F32, rows), y = out(DType::F16, rows), w = in(DType::F16, row);
      stream_through("rms_norm", {x, y, w}, element_flops::kRmsNorm,
                     [&](auto& t) { rms_norm(rig_.stream(), t[1], t[0], t[2], kEps); });
      stream_through("add_rms_norm", {in_out(DType::F32, rows), in(DType::F16, rows), y, w},
                     element_flops::kAddRmsNorm,
                     [&](auto& t) { add_rms_norm(rig_.stream(), t[2], t[0], t[1], t[3], kEps); });
      stream_through("layer_norm", {x, y, w, w}, element_flops::kLayerNorm,
                     [&](auto& t) { layer_norm(rig_.stream(), t[1], t[0], t[2], t[3], kEps); });
      stream_through("layer_norm_gelu", {x, y, w, w}, element_flops::kLayerNormGelu, [&](auto& t) {
        layer_norm_gelu(rig_.stream(), t[1], t[0], t[2], t[3], kEps, GeluKind::Erf);
      });
    }
  }

  void elements() {
    for (const int64_t dim : {kBenchDim, kBenchFfnDim}) {
      const Shape rows{kTokens, dim};
      const Operand x = in(DType::F16, rows), y = out(DType::F16, rows);
      const Operand bias = in(DType::F16, {dim});
      const Operand wide = in(DType::F32, rows), wide_out = out(DType::F32, rows);
      stream_through("gelu_erf", {x, y}, element_flops::kGeluErf,
                     [&](auto& t) { gelu(rig_.stream(), t[1], t[0], {}, GeluKind::Erf); });
      stream_through("gelu_tanh", {x, y}, element_flops::kGeluTanh,
                     [&](auto& t) { gelu(rig_.stream(), t[1], t[0], {}, GeluKind::Tanh); });
      stream_through("bias_gelu_erf", {x, y, bias}, element_flops::kBiasGeluErf,
                     [&](auto& t) { gelu(rig_.stream(), t[1], t[0], t[2], GeluKind::Erf); });
      stream_through("silu", {x, y}, element_flops::kSilu,
                     [&](auto& t) { silu(rig_.stream(), t[1], t[0]); });
      stream_through("swiglu", {x, x, y}, element_flops::kSwiGlu,
                     [&](auto& t) { glu(rig_.stream(), t[2], t[0], t[1], Activation::Silu); });
      stream_through("add", {wide, wide, wide_out}, element_flops::kAdd,
                     [&](auto& t) { add(rig_.stream(), t[2], t[0], t[1]); });
      stream_through("add_bias", {x, y, bias}, element_flops::kAdd,
                     [&](auto& t) { add_bias(rig_.stream(), t[1], t[0], t[2]); });
      stream_through("convert", {wide, y}, element_flops::kConvert,
                     [&](auto& t) { convert(rig_.stream(), t[1], t[0]); });
      stream_through("softmax", {x, y}, element_flops::kSoftmax,
                     [&](auto& t) { softmax(rig_.stream(), t[1], t[0]); });
    }
  }

  void rows_of_logits() {
    const Operand x = in(DType::F32, {kTokens, kBenchVocab});
    stream_through("softmax", {x, out(DType::F32, {kTokens, kBenchVocab})}, element_flops::kSoftmax,
                   [&](auto& t) { softmax(rig_.stream(), t[1], t[0]); });
    const DeviceTensor targets = token_ids();
    stream_through("negative_log_likelihoods", {x, out(DType::F32, {kTokens})}, Bound::Read,
                   element_flops::kLogLikelihood, [&](auto& t) {
                     negative_log_likelihoods(rig_.stream(), t[1], t[0],
                                              static_cast<const int32_t*>(targets.view().data));
                   });
    const DeviceTensor found = allocate_device(DType::U8, {int64_t{sizeof(int64_t)}});
    stream_through("find_non_finite", {x}, Bound::Read, element_flops::kCompare, [&](auto& t) {
      find_non_finite(rig_.stream(), static_cast<int64_t*>(found.view().data), t[0]);
    });
  }

  // The logits are in L2, as after the GEMV that writes them.
  void choices() {
    const DecodeSampling ways[] = {{.banned = {}},
                                   {.temperature = 1, .top_k = 40, .top_p = 0.95f, .banned = {}},
                                   {.temperature = 1, .top_k = 1000, .banned = {}}};
    const PinnedArray<TokenId> chosen(2);
    for (const int64_t n : {kBenchVocab, int64_t{128256}}) {
      for (DecodeSampling sampling : ways) {
        sampling.n_tokens = n;
        const std::string shape =
            cat(n, " f32, ",
                sampling.temperature == 0 ? std::string("greedy") : cat("top ", sampling.top_k));
        if (!rig_.choice.wants("choose_token", shape)) continue;
        const DeviceTensor logits = random_tensor(DType::F32, {n}, 4);
        const TokenChoice choice = token_choice(sampling, n, 0).value();
        std::vector<int32_t> words(sizeof choice / sizeof(int32_t));
        std::memcpy(words.data(), &choice, sizeof choice);
        const DeviceTensor choice_on_card = to_card(words), input = to_card({1, 0, 0, 1});
        const double us = graph_us(rig_.stream(), kBenchLaunches, [&] {
          for (int i = 0; i < kBenchLaunches; ++i) {
            choose_token(rig_.stream(), logits.view().as<const float>(),
                         static_cast<const TokenChoice*>(choice_on_card.view().data),
                         static_cast<StepInput*>(input.view().data), 0, chosen.data(),
                         /*with_pdl=*/false);
          }
        });
        rig_.choice.done(
            {"choose_token", shape, Bound::Read, us * 1e-6, {double(4 * n), double(n)}});
      }
    }
  }

  void positions() {
    const Shape heads{kTokens, kBenchHeads, kBenchHeadDim};
    stream_through("rope",
                   {in(DType::F16, heads), out(DType::F16, heads),
                    in(DType::F32, {kTokens, kBenchHeadDim / 2, 2})},
                   element_flops::kRope,
                   [&](auto& t) { rope(rig_.stream(), t[1], t[0], t[2], 0); });
    const int64_t n_pages = pages_for(kTokens);
    const DeviceTensor pages = pages_in_order(n_pages);
    const CachePlace place = first_place(pages);
    const Shape cache_rows{n_pages, kBenchHeads, kPagePositions, kBenchHeadDim};
    stream_through("rope_append",
                   {in_out(DType::F16, heads), in(DType::F16, heads), in(DType::F16, heads),
                    out(DType::F16, cache_rows), out(DType::F16, cache_rows),
                    in(DType::F32, {kTokens, kBenchHeadDim / 2, 2})},
                   2 * element_flops::kRope, [&](auto& t) {
                     KvLayer layer = bench_layer(DType::F16, n_pages, view_of_tensor(t[3]),
                                                 view_of_tensor(t[4]));
                     rope_append(rig_.stream(), layer, place, t[0], t[1], t[2], t[5]);
                   });
    for (DType dtype : {DType::F16, DType::U8}) {
      const char* const name = dtype == DType::U8 ? "kv_append_int8" : "kv_append_f16";
      const Operand keys = out(dtype, cache_rows);
      const Operand scales = out(DType::F32, {n_pages, kBenchHeads, kPagePositions});
      std::vector<Operand> operands = {in(DType::F16, heads), in(DType::F16, heads), keys, keys};
      if (dtype == DType::U8) operands.insert(operands.end(), {scales, scales});
      const double flops = dtype == DType::U8 ? 2 * element_flops::kQuantize : 0;
      stream_through(name, operands, flops, [&](auto& t) {
        KvLayer layer = bench_layer(dtype, n_pages, view_of_tensor(t[2]), view_of_tensor(t[3]));
        if (dtype == DType::U8) {
          layer.key_scales = view_of_tensor(t[4]);
          layer.value_scales = view_of_tensor(t[5]);
        }
        kv_append(rig_.stream(), layer, place, t[0], t[1]);
      });
    }
  }

  void lookups() {
    const DeviceTensor ids = token_ids();
    struct Table {
      WeightFormat format;
      bool by_rows;
    };
    for (const auto& [f, by_rows] : {Table{kF16Weights, false},
                                     {kInt8Weights, true},
                                     {kInt4Weights, true},
                                     {kInt8Weights, false},
                                     {kInt4Weights, false}}) {
      const bool is_packed = f.group != 0 && !by_rows;
      const std::string shape =
          cat(kTokens, " x ", kBenchDim, " ", f.name, is_packed ? ", packed for GEMV" : "");
      if (!rig_.choice.wants("gather_rows", shape)) continue;
      const auto table = [&] {
        Matrix w = rig_.inputs.matrix(f, kBenchVocab, kBenchDim);
        w.by_rows = by_rows;
        return w;
      };
      const Operand rows = out(DType::F32, {kTokens, kBenchDim});
      const double us = graph_us(rig_.stream(), kBenchLaunches, [&] {
        for (int i = 0; i < kBenchLaunches; ++i) {
          gather_rows(rig_.stream(), rig_.outputs.take(rows.dtype, rows.shape), table(),
                      static_cast<const int32_t*>(ids.view().data));
        }
      });
      // GEMV packing interleaves two rows in pieces of 64 bytes, so that a lookup reads both rows.
      const double table_rows = double(table().n_bytes) * double(kTokens) / double(kBenchVocab);
      const double bytes = (is_packed ? 2 : 1) * table_rows + rows.bytes();
      const double flops =
          f.group == 0 ? 0 : element_flops::kDequantize * double(kTokens * kBenchDim);
      rig_.choice.done({"gather_rows", shape, Bound::Copy, us * 1e-6, {bytes, flops}});
    }
  }

  static DeviceTensor token_ids() {
    std::vector<int32_t> ids(kTokens);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * 7919 % kBenchVocab);
    return to_card(ids);
  }

  KernelRig& rig_;
};

}  // namespace

void time_row_kernels(KernelRig& rig) { RowKernels(rig).run(); }

}  // namespace minfer::cuda
