#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/math.h"
#include "kernels/bench.h"
#include "kernels/cuda/bench/code_kernels.h"
#include "kernels/cuda/bench/decode_gemvs.h"
#include "kernels/cuda/bench/gemm_timer.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/sampling/choose_token.h"

// Times the launchers of launchers.h at shapes of Llama-2-7B, except those that load a model, and
// choose_token().
namespace minfer {
namespace cuda {
namespace {

// Memory-bound kernels get this many rows. With 4096 columns they exceed L2, so that DRAM is timed,
// and the start and the end of a launch matter little.
constexpr int64_t kTokens = 8192;
constexpr int64_t kHeads = 32, kHeadDim = 128;
constexpr int kLaunches = 32;
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

class KernelBench {
 public:
  explicit KernelBench(const KernelChoice& choice) : choice_(choice) {}

  void run() {
    norms();
    elements();
    rows_of_logits();
    choices();
    positions();
    gemms();
    gemvs();
    dequantized();
    time_code_kernels(stream(), inputs_, outputs_, choice_);
    attention_of_prompts();
    attention_of_steps();
  }

 private:
  // ---- rows and elements ----

  // Times kernel(tensors), where `tensors` are the operands in order. Each launch gets new memory.
  // It makes element_flops operations for each element of the first operand.
  template <typename F>
  void stream_through(const char* name, const std::vector<Operand>& operands, Bound bound,
                      double element_flops, const F& kernel) {
    const std::string shape = shape_text(operands.front());
    if (!choice_.wants(name, shape)) return;
    double bytes = 0;
    for (const Operand& o : operands) bytes += o.bytes();
    const double us = graph_us(stream(), kLaunches, [&] {
      for (int i = 0; i < kLaunches; ++i) {
        std::vector<DeviceTensor> memory;
        std::vector<Tensor> tensors;
        for (const Operand& o : operands) {
          memory.push_back((o.is_written ? outputs_ : inputs_).take(o.dtype, o.shape));
          tensors.push_back(memory.back());
        }
        kernel(tensors);
      }
    });
    const double flops = element_flops * double(operands.front().shape.n_elements());
    choice_.done({name, shape, bound, us * 1e-6, {bytes, flops}});
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
                     [&](auto& t) { rms_norm(stream(), t[1], t[0], t[2], kEps); });
      stream_through("add_rms_norm", {in_out(DType::F32, rows), in(DType::F16, rows), y, w},
                     element_flops::kAddRmsNorm,
                     [&](auto& t) { add_rms_norm(stream(), t[2], t[0], t[1], t[3], kEps); });
      stream_through("layer_norm", {x, y, w, w}, element_flops::kLayerNorm,
                     [&](auto& t) { layer_norm(stream(), t[1], t[0], t[2], t[3], kEps); });
      stream_through("layer_norm_gelu", {x, y, w, w}, element_flops::kLayerNormGelu, [&](auto& t) {
        layer_norm_gelu(stream(), t[1], t[0], t[2], t[3], kEps, GeluKind::Erf);
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
                     [&](auto& t) { gelu(stream(), t[1], t[0], {}, GeluKind::Erf); });
      stream_through("gelu_tanh", {x, y}, element_flops::kGeluTanh,
                     [&](auto& t) { gelu(stream(), t[1], t[0], {}, GeluKind::Tanh); });
      stream_through("bias_gelu_erf", {x, y, bias}, element_flops::kBiasGeluErf,
                     [&](auto& t) { gelu(stream(), t[1], t[0], t[2], GeluKind::Erf); });
      stream_through("silu", {x, y}, element_flops::kSilu,
                     [&](auto& t) { silu(stream(), t[1], t[0]); });
      stream_through("swiglu", {x, x, y}, element_flops::kSwiGlu,
                     [&](auto& t) { glu(stream(), t[2], t[0], t[1], Activation::Silu); });
      stream_through("add", {wide, wide, wide_out}, element_flops::kAdd,
                     [&](auto& t) { add(stream(), t[2], t[0], t[1]); });
      stream_through("add_bias", {x, y, bias}, element_flops::kAdd,
                     [&](auto& t) { add_bias(stream(), t[1], t[0], t[2]); });
      stream_through("convert", {wide, y}, element_flops::kConvert,
                     [&](auto& t) { convert(stream(), t[1], t[0]); });
      stream_through("softmax", {x, y}, element_flops::kSoftmax,
                     [&](auto& t) { softmax(stream(), t[1], t[0]); });
    }
  }

  void rows_of_logits() {
    const Operand x = in(DType::F32, {kTokens, kBenchVocab});
    stream_through("softmax", {x, out(DType::F32, {kTokens, kBenchVocab})}, element_flops::kSoftmax,
                   [&](auto& t) { softmax(stream(), t[1], t[0]); });
    const DeviceTensor targets = token_ids();
    stream_through("negative_log_likelihoods", {x, out(DType::F32, {kTokens})}, Bound::Read,
                   element_flops::kLogLikelihood, [&](auto& t) {
                     negative_log_likelihoods(stream(), t[1], t[0],
                                              static_cast<const int32_t*>(targets.view().data));
                   });
    const DeviceTensor found = allocate_device(DType::U8, {int64_t{sizeof(int64_t)}});
    stream_through("find_non_finite", {x}, Bound::Read, element_flops::kCompare, [&](auto& t) {
      find_non_finite(stream(), static_cast<int64_t*>(found.view().data), t[0]);
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
        if (!choice_.wants("choose_token", shape)) continue;
        const DeviceTensor logits = random_tensor(DType::F32, {n}, 4);
        const TokenChoice choice = token_choice(sampling, n, 0).value();
        std::vector<int32_t> words(sizeof choice / sizeof(int32_t));
        std::memcpy(words.data(), &choice, sizeof choice);
        const DeviceTensor choice_on_card = to_card(words), input = to_card({1, 0, 1});
        const double us = graph_us(stream(), kLaunches, [&] {
          for (int i = 0; i < kLaunches; ++i) {
            choose_token(stream(), logits.view().as<const float>(),
                         static_cast<const TokenChoice*>(choice_on_card.view().data),
                         static_cast<StepInput*>(input.view().data), 0, chosen.data());
          }
        });
        choice_.done({"choose_token", shape, Bound::Read, us * 1e-6, {double(4 * n), double(n)}});
      }
    }
  }

  void positions() {
    const Shape heads{kTokens, kHeads, kHeadDim};
    stream_through(
        "rope",
        {in(DType::F16, heads), out(DType::F16, heads), in(DType::F32, {kTokens, kHeadDim / 2, 2})},
        element_flops::kRope, [&](auto& t) { rope(stream(), t[1], t[0], t[2], 0); });
    const int64_t n_pages = pages_for(kTokens);
    const DeviceTensor pages = pages_in_order(n_pages);
    const CachePlace place = first_place(pages);
    const Shape cache_rows{n_pages, kHeads, kPagePositions, kHeadDim};
    stream_through("rope_append",
                   {in_out(DType::F16, heads), in(DType::F16, heads), in(DType::F16, heads),
                    out(DType::F16, cache_rows), out(DType::F16, cache_rows),
                    in(DType::F32, {kTokens, kHeadDim / 2, 2})},
                   2 * element_flops::kRope, [&](auto& t) {
                     KvLayer layer =
                         layer_of(DType::F16, n_pages, view_of_tensor(t[3]), view_of_tensor(t[4]));
                     rope_append(stream(), layer, place, t[0], t[1], t[2], t[5]);
                   });
    for (DType dtype : {DType::F16, DType::U8}) {
      const char* const name = dtype == DType::U8 ? "kv_append_int8" : "kv_append_f16";
      const Operand keys = out(dtype, cache_rows);
      const Operand scales = out(DType::F32, {n_pages, kHeads, kPagePositions});
      std::vector<Operand> operands = {in(DType::F16, heads), in(DType::F16, heads), keys, keys};
      if (dtype == DType::U8) operands.insert(operands.end(), {scales, scales});
      const double flops = dtype == DType::U8 ? 2 * element_flops::kQuantize : 0;
      stream_through(name, operands, flops, [&](auto& t) {
        KvLayer layer = layer_of(dtype, n_pages, view_of_tensor(t[2]), view_of_tensor(t[3]));
        if (dtype == DType::U8) {
          layer.key_scales = view_of_tensor(t[4]);
          layer.value_scales = view_of_tensor(t[5]);
        }
        kv_append(stream(), layer, place, t[0], t[1]);
      });
    }
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
      if (!choice_.wants("gather_rows", shape)) continue;
      const auto table = [&] {
        Matrix w = inputs_.matrix(f, kBenchVocab, kBenchDim);
        w.by_rows = by_rows;
        return w;
      };
      const Operand rows = out(DType::F32, {kTokens, kBenchDim});
      const double us = graph_us(stream(), kLaunches, [&] {
        for (int i = 0; i < kLaunches; ++i) {
          gather_rows(stream(), outputs_.take(rows.dtype, rows.shape), table(),
                      static_cast<const int32_t*>(ids.view().data));
        }
      });
      // GEMV packing interleaves two rows in pieces of 64 bytes, so that a lookup reads both rows.
      const double table_rows = double(table().n_bytes) * double(kTokens) / double(kBenchVocab);
      const double bytes = (is_packed ? 2 : 1) * table_rows + rows.bytes();
      const double flops =
          f.group == 0 ? 0 : element_flops::kDequantize * double(kTokens * kBenchDim);
      choice_.done({"gather_rows", shape, Bound::Copy, us * 1e-6, {bytes, flops}});
    }
  }

  // ---- GEMM and GEMV ----

  void gemms() {
    const struct {
      const char* name;
      Epilogue epilogue;
      int n_parts;
      int64_t n, k;
    } cases[] = {{"gemm_store", Epilogue::Store, 3, 3 * kBenchDim, kBenchDim},
                 {"gemm_store", Epilogue::Store, 1, kBenchDim, kBenchDim},
                 {"gemm_accumulate", Epilogue::Accumulate, 1, kBenchDim, kBenchDim},
                 {"gemm_accumulate", Epilogue::Accumulate, 1, kBenchDim, kBenchFfnDim},
                 {"gemm_swiglu", Epilogue::SwiGlu, 2, 2 * kBenchFfnDim, kBenchDim},
                 {"gemm_gelu_erf", Epilogue::GeluErf, 1, kBenchFfnDim, kBenchDim},
                 {"gemm_gelu_tanh", Epilogue::GeluTanh, 1, kBenchFfnDim, kBenchDim}};
    for (int64_t m : {512, 2048, 4096}) {
      for (const auto& c : cases) {
        const TimedGemm timed{m, c.n, c.k, c.epilogue, c.n_parts};
        const std::string shape = timed.shape("f16");
        if (!choice_.wants(c.name, shape)) continue;
        const auto times =
            gemm_timer().times(timed, [&](Tensor x, std::span<const GemmPart> parts) {
              gemm(stream(), x, parts, c.epilogue);
            });
        KernelTiming timing{c.name, shape, Bound::Flops, times.us * 1e-6, timed.work()};
        if (times.cublas_us) timing.cublas_seconds = *times.cublas_us * 1e-6;
        choice_.done(timing);
      }
      append(m);
    }
  }

  // The fused GEMM of q, k and v as in prefill, compared with cuBLAS's GEMM alone.
  void append(int64_t m) {
    const TimedGemm timed{m, 3 * kBenchDim, kBenchDim, Epilogue::Store, 3};
    const std::string shape = cat(m, " x ", timed.n, " x ", timed.k, " f16");
    if (!choice_.wants("gemm_append", shape)) return;
    const int64_t n_pages = pages_for(m);
    const DeviceTensor pages = pages_in_order(n_pages);
    const Shape cache_rows{n_pages, kHeads, kPagePositions, kHeadDim};
    const DeviceTensor keys = allocate_device(DType::F16, cache_rows);
    const DeviceTensor values = allocate_device(DType::F16, cache_rows);
    const DeviceTensor table = random_tensor(DType::F32, {m, kHeadDim / 2, 2});
    KvLayer layer = layer_of(DType::F16, n_pages, view_of_tensor(keys), view_of_tensor(values));
    if (!gemm_can_append(gemm_timer().args_of(timed), layer, table)) return;
    const auto times = gemm_timer().times(timed, [&](Tensor x, std::span<const GemmPart> parts) {
      gemm_append(stream(), layer, first_place(pages), x, parts.first<3>(), table, {});
    });
    KernelTiming timing{"gemm_append", shape, Bound::Flops, times.us * 1e-6, timed.work()};
    if (times.cublas_us) timing.cublas_seconds = *times.cublas_us * 1e-6;
    choice_.done(timing);
  }

  void gemvs() {
    for (int64_t n_tokens : {int64_t{1}, kMaxGemvTokens}) {
      const DecodeActivations a(n_tokens);
      for (const WeightFormat& f : {kF16Weights, kInt8Weights, kInt4Weights}) {
        for (DecodeGemv which : kDecodeGemvs) {
          std::vector<std::vector<Matrix>> sets;
          for (int i = 0; i < kLaunches; ++i) sets.push_back(matrices_of(inputs_, f, which));
          const std::string name = cat("gemv_", name_of(which));
          const std::string shape = cat(n_tokens, " x ", shape_of(f, sets[0]));
          if (!choice_.wants(name, shape)) continue;
          const double us = graph_us(stream(), kLaunches, [&] {
            for (const auto& w : sets) run_gemv(stream(), a, which, w);
          });
          const double flops = 2.0 * double(n_tokens) * double(elements_of_all(sets[0]));
          choice_.done(
              {name, shape, Bound::Read, us * 1e-6, {double(bytes_of_all(sets[0])), flops}});
        }
      }
    }
  }

  void dequantized() {
    for (const WeightFormat& f : {kInt8Weights, kInt4Weights}) {
      for (DecodeGemv which : kDecodeGemvs) {
        double bytes = 0;
        std::vector<std::vector<Matrix>> sets;
        for (int i = 0; i < kLaunches; ++i) sets.push_back(matrices_of(inputs_, f, which));
        const std::string shape = shape_of(f, sets[0]);
        if (!choice_.wants("dequantize_rows", shape)) continue;
        const double us = graph_us(stream(), kLaunches, [&] {
          for (const auto& set : sets) {
            std::vector<DeviceTensor> halves;
            std::vector<DequantizePart> parts;
            bytes = double(bytes_of_all(set));
            for (const Matrix& w : set) {
              halves.push_back(outputs_.take(DType::F16, {w.out_dim, w.in_dim}));
              parts.push_back({&w, halves.back()});
              bytes += double(halves.back().view().n_bytes());
            }
            dequantize_rows(stream(), parts);
          }
        });
        const double flops = element_flops::kDequantize * double(elements_of_all(sets[0]));
        choice_.done({"dequantize_rows", shape, Bound::Copy, us * 1e-6, {bytes, flops}});
      }
    }
  }

  // ---- attention ----

  static std::string attention_shape(int64_t n_tokens, DType cache) {
    return cat(n_tokens, " x ", kHeads, " x ", kHeadDim, cache == DType::U8 ? " int8" : " f16");
  }

  void attention_of_prompts() {
    for (DType dtype : {DType::F16, DType::U8}) {
      for (int64_t n : {512, 2048, 4096}) {
        const std::string shape = attention_shape(n, dtype);
        if (!choice_.wants("attention_prefill", shape)) continue;
        const KvLayer cache = random_kv_layer(dtype, kHeads, kHeadDim, pages_for(n));
        const DeviceTensor pages = pages_in_order(pages_for(n));
        const DeviceTensor q = random_tensor(DType::F16, {n, kHeads, kHeadDim}, 2);
        const DeviceTensor o = allocate_device(DType::F16, {n, kHeads, kHeadDim});
        const DeviceTensor workspace = allocate_device(
            DType::U8, {attention_prefill_workspace(dtype, kHeads, kHeadDim, pages_for(n))});
        constexpr int kTimes = 10;
        const double us = graph_us(stream(), kTimes, [&] {
          for (int i = 0; i < kTimes; ++i)
            attention_prefill(stream(), o, q, cache, first_place(pages), 0.09f, 0,
                              workspace.view().data);
        });
        const double flops = 2.0 * double(n) * double(n + 1) * double(kHeads * kHeadDim);
        const int64_t row_bytes = dtype == DType::U8 ? kHeadDim + 4 : 2 * kHeadDim;
        const double bytes = 2.0 * double(n * kHeads) * double(2 * kHeadDim + row_bytes);
        choice_.done({"attention_prefill", shape, Bound::Flops, us * 1e-6, {bytes, flops}});
      }
    }
  }

  void attention_of_steps() {
    constexpr int64_t kCapacity = 4096;
    const DeviceTensor pages = pages_in_order(pages_for(kCapacity));
    std::optional<TensorPool> pool;
    for (DType dtype : {DType::F16, DType::U8}) {
      for (int64_t context : {128, 512, 4096}) {
        const std::string shape = attention_shape(context, dtype);
        if (!choice_.wants("attention_decode", shape)) continue;
        const int64_t row_bytes = dtype == DType::U8 ? kHeadDim + 4 : 2 * kHeadDim;
        const double bytes = 2.0 * double(kHeads * context * row_bytes);
        // Enough caches that each has been evicted from L2 when its turn comes again.
        const int n_caches = int(std::clamp(200e6 / bytes + 1, 2.0, 64.0));
        if (!pool) pool.emplace(int64_t{4} << 30, 2.0f);
        std::vector<KvLayer> caches;
        for (int i = 0; i < n_caches; ++i)
          caches.push_back(layer_from(*pool, dtype, pages_for(kCapacity)));
        const Shape heads{1, kHeads, kHeadDim};
        const DeviceTensor q = random_tensor(DType::F16, heads, 2);
        const DeviceTensor k = random_tensor(DType::F16, heads, 2);
        const DeviceTensor v = random_tensor(DType::F16, heads, 2);
        const DeviceTensor o = allocate_device(DType::F16, heads);
        const DeviceTensor table = constant_tensor({kCapacity, kHeadDim / 2, 2}, 0.5f);
        const int64_t n_bytes = attention_decode_workspace(1, kHeads, kHeads, kHeadDim, kCapacity);
        const DeviceTensor workspace = allocate_device(DType::U8, {n_bytes});
        MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
        const DeviceTensor pos = to_card(std::vector{narrow<int32_t>(context - 1)});
        const int n_launches = std::max(2 * n_caches, 8);
        const double us = graph_us(stream(), n_launches, [&] {
          for (int i = 0; i < n_launches; ++i) {
            attention_decode(stream(), {.out = o,
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
        const double flops = 4.0 * double(context * kHeads * kHeadDim);
        choice_.done({"attention_decode", shape, Bound::Read, us * 1e-6, {bytes, flops}});
      }
    }
  }

  // ---- memory ----

  static DeviceTensor view_of_tensor(const Tensor& t) {
    return DeviceTensor(t, [](void*) {});
  }
  static KvLayer layer_of(DType dtype, int64_t n_pages, DeviceTensor keys, DeviceTensor values) {
    KvLayer layer;
    layer.keys = std::move(keys);
    layer.values = std::move(values);
    layer.n_kv_heads = kHeads;
    layer.head_dim = kHeadDim;
    layer.n_pages = n_pages;
    layer.dtype = dtype;
    return layer;
  }
  static KvLayer layer_from(TensorPool& pool, DType dtype, int64_t n_pages) {
    const Shape rows{n_pages, kHeads, kPagePositions, kHeadDim};
    const Shape scales{n_pages, kHeads, kPagePositions};
    KvLayer layer = layer_of(dtype, n_pages, pool.take(dtype, rows), pool.take(dtype, rows));
    if (dtype == DType::U8) {
      layer.key_scales = pool.take(DType::F32, scales);
      layer.value_scales = pool.take(DType::F32, scales);
    }
    return layer;
  }
  static CachePlace first_place(const DeviceTensor& pages) {
    return {static_cast<const int32_t*>(pages.view().data), pages.view().n_elements(), 0};
  }
  static DeviceTensor to_card(const std::vector<int32_t>& values) {
    const int64_t n = std::ssize(values);
    DeviceTensor tensor = allocate_device(DType::F32, {n});  // as large as int32
    MINFER_CUDA_CHECK(
        cudaMemcpy(tensor.view().data, values.data(), size_t(4 * n), cudaMemcpyHostToDevice));
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for the copy
    return tensor;
  }
  static DeviceTensor token_ids() {
    std::vector<int32_t> ids(kTokens);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * 7919 % kBenchVocab);
    return to_card(ids);
  }

  cudaStream_t stream() const { return stream_.get(); }
  GemmTimer& gemm_timer() {
    if (!gemm_timer_) {
      try {
        cublas_.emplace(stream());
      } catch (const Error&) {  // no cuBLAS: no baseline; CudaLimits::no_cublas has the reason
      }
      gemm_timer_.emplace(stream(), cublas_ ? &*cublas_ : nullptr);
    }
    return *gemm_timer_;
  }

  const KernelChoice& choice_;
  Stream stream_ = make_stream();
  // Operands that are read, and those that are written. A capture must not allocate memory.
  TensorPool inputs_{int64_t{2} << 30}, outputs_{int64_t{2} << 30};
  std::optional<Cublas> cublas_;
  std::optional<GemmTimer> gemm_timer_;
};

}  // namespace
}  // namespace cuda

void time_cuda_kernels(int device, const KernelChoice& choice) {
  cuda::use_device(device);
  cuda::KernelBench(choice).run();
}

}  // namespace minfer
