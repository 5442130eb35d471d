#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "kernels/base/math.h"
#include "kernels/bench.h"

// Times the operations of the CPU backend at shapes of Llama-2-7B.
namespace minfer {
namespace {

constexpr int64_t kDim = 4096, kFfnDim = 11008, kVocab = 32000, kHeads = 32, kHeadDim = 128;
constexpr int64_t kTokens = 512;                  // of a prompt
constexpr int64_t kColdBytes = int64_t{1} << 29;  // tensors used in turn: more than the caches hold
constexpr int kMinRuns = 3, kMaxRuns = 50;
constexpr double kEnoughSeconds = 0.3;  // of one kernel

class KernelBench {
 public:
  KernelBench(int n_threads, const std::string& isa, const KernelChoice& choice)
      : backend_(make_cpu_backend({.n_threads = n_threads, .isa = isa})), choice_(choice) {}

  void run() {
    rows();
    matmuls();
    attention();
  }

 private:
  // Calls op(i) for i = 0, 1, ..., and reports the fastest call.
  template <typename F>
  void time(const std::string& kernel, const std::string& shape, Bound bound,
            const KernelWork& work, const F& op) {
    double best = 1e9, sum = 0;
    op(0);
    for (int i = 1; i <= kMinRuns || (i <= kMaxRuns && sum < kEnoughSeconds); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      op(i);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      best = std::min(best, taken.count());
      sum += taken.count();
    }
    choice_.done({kernel, shape, bound, best, work});
  }

  // Times op(out, x) over [kTokens, dim], which moves `tensors` tensors of that size.
  template <typename F>
  void row_op(const char* kernel, int64_t dim, int tensors, double element_flops, const F& op) {
    const std::string shape = cat(kTokens, " x ", dim, " f32");
    if (!choice_.wants(kernel, shape)) return;
    const HostTensor host = filled(DType::F32, {kTokens, dim});
    std::vector<DeviceTensor> x, out;
    const int64_t n_bytes = host.view().n_bytes();
    for (int64_t bytes = 0; bytes < kColdBytes; bytes += 2 * n_bytes) {
      x.push_back(backend_->upload(host));
      out.push_back(backend_->upload(host));
    }
    const double flops = element_flops * double(kTokens * dim);
    time(kernel, shape, Bound::Copy, {double(tensors) * double(n_bytes), flops}, [&](int i) {
      const size_t at = size_t(i) % x.size();
      op(out[at].view(), x[at].view());
    });
  }

  void rows() {
    Backend& b = *backend_;
    const DeviceTensor weight = b.upload_vector(filled(DType::F32, {kDim}));
    const DeviceTensor bias = b.upload_vector(filled(DType::F32, {kFfnDim}));
    const DeviceTensor other = b.upload(filled(DType::F32, {kTokens, kFfnDim}));
    row_op("rms_norm", kDim, 2, element_flops::kRmsNorm,
           [&](Tensor out, Tensor x) { b.rms_norm(out, x, weight, 1e-5f); });
    row_op("layer_norm", kDim, 2, element_flops::kLayerNorm,
           [&](Tensor out, Tensor x) { b.layer_norm(out, x, weight, weight, 1e-5f); });
    row_op("gelu_erf", kFfnDim, 2, element_flops::kGeluErf,
           [&](Tensor out, Tensor x) { b.gelu(out, x, GeluKind::Erf); });
    row_op("gelu_tanh", kFfnDim, 2, element_flops::kGeluTanh,
           [&](Tensor out, Tensor x) { b.gelu(out, x, GeluKind::Tanh); });
    row_op("silu", kFfnDim, 2, element_flops::kSilu, [&](Tensor out, Tensor x) { b.silu(out, x); });
    row_op("swiglu", kFfnDim, 3, element_flops::kSwiGlu,
           [&](Tensor out, Tensor x) { b.swiglu(out, x, other); });
    row_op("add", kFfnDim, 3, element_flops::kAdd,
           [&](Tensor out, Tensor x) { b.add(out, x, other); });
    row_op("add_bias", kFfnDim, 2, element_flops::kAdd,
           [&](Tensor out, Tensor x) { b.add_bias(out, x, bias); });
    row_op("softmax", kVocab, 2, element_flops::kSoftmax,
           [&](Tensor out, Tensor x) { b.softmax(out, x); });
    const DeviceTensor table = b.upload(filled(DType::F32, {kTokens, kHeadDim / 2, 2}));
    row_op("rope", kDim, 2, element_flops::kRope, [&](Tensor, Tensor x) {
      const SequenceRows rows{kTokens, 0, {}};
      b.rope(x.reshaped({kTokens, kHeads, kHeadDim}), table, {&rows, 1});
    });
  }

  // Times a matmul; pack() makes one matrix.
  template <typename Pack>
  void matmul(const char* type, int64_t n_tokens, int64_t out_dim, int64_t in_dim,
              const Pack& pack) {
    const char* const kernel = n_tokens == 1 ? "gemv" : "gemm";
    const std::string shape = cat(n_tokens, " x ", out_dim, " x ", in_dim, " ", type);
    if (!choice_.wants(kernel, shape)) return;
    std::vector<Matrix> w;
    const int64_t enough = n_tokens == 1 ? kColdBytes : 1;
    for (int64_t bytes = 0; bytes < enough; bytes += w.back().n_bytes) w.push_back(pack());
    const DeviceTensor x = backend_->upload(filled(DType::F32, {n_tokens, in_dim}));
    const DeviceTensor out = backend_->allocate(DType::F32, {n_tokens, out_dim});
    const double flops = 2.0 * double(n_tokens) * double(out_dim) * double(in_dim);
    const int64_t activation_bytes = n_tokens == 1 ? 0 : x.view().n_bytes() + out.view().n_bytes();
    const auto bytes = double(w[0].n_bytes + activation_bytes);
    time(kernel, shape, n_tokens == 1 ? Bound::Read : Bound::Flops, {bytes, flops},
         [&](int i) { backend_->matmul(out, x, w[size_t(i) % w.size()]); });
  }

  void matmuls() {
    for (int64_t n_tokens : {int64_t{1}, kTokens}) {
      for (const auto& [out_dim, in_dim] :
           {std::pair{kDim, kDim}, {kFfnDim, kDim}, {kDim, kFfnDim}}) {
        matmul("f16", n_tokens, out_dim, in_dim, [&, out_dim = out_dim, in_dim = in_dim] {
          return backend_->pack_matrix(filled(DType::F16, {out_dim, in_dim}));
        });
        matmul("u8_row", n_tokens, out_dim, in_dim, [&, out_dim = out_dim, in_dim = in_dim] {
          return backend_->pack_matrix(filled_codes(DType::U8, out_dim, in_dim, in_dim).view());
        });
        matmul("u4_g64", n_tokens, out_dim, in_dim, [&, out_dim = out_dim, in_dim = in_dim] {
          return backend_->pack_matrix(filled_codes(DType::U4, out_dim, in_dim, 64).view());
        });
      }
    }
  }

  void attention() {
    for (DType dtype : {DType::F16, DType::U8}) {
      for (int64_t n_tokens : {kTokens, int64_t{1}}) {
        const bool is_decode = n_tokens == 1;
        const int64_t kv_len = is_decode ? 4096 : kTokens;
        const char* const kernel = is_decode ? "attention_decode" : "attention_prefill";
        const std::string shape =
            cat(kv_len, " x ", kHeads, " x ", kHeadDim, dtype == DType::U8 ? " int8" : " f16");
        if (!choice_.wants(kernel, shape)) continue;
        KvLayer cache = backend_->make_kv_layer(dtype, kHeads, kHeadDim, pages_for(kv_len));
        std::vector<int32_t> pages(static_cast<size_t>(cache.n_pages));
        std::iota(pages.begin(), pages.end(), 0);
        const SequenceRows all{kv_len, 0, pages}, last{n_tokens, kv_len - n_tokens, pages};
        const DeviceTensor kv = backend_->upload(filled(DType::F32, {kv_len, kHeads, kHeadDim}));
        backend_->kv_append(cache, kv, kv, {&all, 1});
        const DeviceTensor q = backend_->upload(filled(DType::F32, {n_tokens, kHeads, kHeadDim}));
        const DeviceTensor out = backend_->allocate(DType::F32, q.view().shape);
        const int64_t row_bytes = dtype == DType::U8 ? kHeadDim + 4 : 2 * kHeadDim;
        const double cache_bytes = 2.0 * double(kHeads * kv_len * row_bytes);
        const double bytes = cache_bytes + 2.0 * double(q.view().n_bytes());
        const double flops = is_decode ? 4.0 * double(kv_len * kDim)
                                       : 2.0 * double(kTokens) * double(kTokens + 1) * double(kDim);
        time(kernel, shape, is_decode ? Bound::Read : Bound::Flops,
             {is_decode ? cache_bytes : bytes, flops}, [&](int) {
               backend_->attention(
                   {.out = out, .q = q, .cache = cache, .batch = {&last, 1}, .scale = 0.09f});
             });
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  const KernelChoice& choice_;
};

}  // namespace

HostTensor filled(DType dtype, const Shape& shape) {
  HostTensor tensor(dtype, shape);
  visit_float(dtype, [&]<typename T>() {
    for (int64_t i = 0; i < shape.n_elements(); ++i) {
      tensor.as<T>()[i] = from_f32<T>(float(i * 7919 % 1009) / 1009 - 0.5f);
    }
  });
  return tensor;
}

HostQuantizedMatrix filled_codes(DType codes, int64_t out_dim, int64_t in_dim, int64_t group) {
  HostQuantizedMatrix w =
      make_quantized_matrix(codes, DType::F16, out_dim, in_dim, group, /*asymmetric=*/false);
  auto* const bytes = static_cast<uint8_t*>(w.codes.view().data);
  for (int64_t i = 0; i < w.codes.view().n_bytes(); ++i) bytes[i] = uint8_t(i * 7919);
  w.scales = filled(DType::F16, w.scales.view().shape);
  return w;
}

void time_cpu_kernels(int n_threads, const std::string& isa, const KernelChoice& choice) {
  KernelBench(n_threads, isa, choice).run();
}

}  // namespace minfer
