// Products of few tokens in the shapes of Llama-2-7B, the chain of a decode step without its
// attention, and the same matrices made F16 as products of many tokens need them: one JSON line
// each, with the share of the read limit measured in the same process.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matvec/params.h"

namespace minfer::bench {
namespace {

using cuda::Epilogue;
using cuda::MatvecNorm;
using cuda::MatvecPart;

constexpr int64_t kDim = 4096, kFfnDim = 11008, kVocab = 32000;
constexpr int kLayers = 32, kLaunches = 64;

struct Format {
  const char* name;
  DType levels, scales;
  bool with_mins;
  int64_t group;  // 0: floats; -1: the row
};

constexpr Format kF16{"f16", DType::F16, DType::F16, false, 0};
constexpr Format kU8Row{"u8_row", DType::U8, DType::F16, false, -1};
constexpr Format kU4G64{"u4_g64", DType::U4, DType::F16, false, 64};
constexpr Format kQ4K{"u4_g32_f32_mins", DType::U4, DType::F32, true, 32};

// Random numbers that are finite in any type. Matrices are views of it, one behind the other and
// round again, so that none is in the cache when its turn comes.
class Pool {
 public:
  explicit Pool(size_t n_bytes) : size_(n_bytes) {
    memory_ = cuda::allocate_device(DType::U8, {int64_t(n_bytes)});
    std::vector<f16> block(size_t{1} << 25);
    std::mt19937 engine(1);
    for (f16& x : block) x = from_f32<f16>((float(engine() >> 8) * 0x1p-24f - 0.5f) * 0.05f);
    for (size_t at = 0; at < n_bytes; at += block.size() * 2) {
      MINFER_CUDA_CHECK(cudaMemcpy(data() + at, block.data(),
                                   std::min(block.size() * 2, n_bytes - at),
                                   cudaMemcpyHostToDevice));
    }
  }

  char* data() const { return static_cast<char*>(memory_.view().data); }
  size_t size() const { return size_; }

  Matrix matrix(const Format& f, int64_t out_dim, int64_t in_dim) {
    Matrix w;
    w.out_dim = out_dim;
    w.in_dim = in_dim;
    w.dtype = f.levels;
    if (f.group == 0) {
      w.storage = take(f.levels, {out_dim, in_dim});
      w.n_bytes = w.storage.view().n_bytes();
      return w;
    }
    const int64_t group = f.group < 0 ? in_dim : f.group;
    const int64_t n_scales = out_dim * in_dim / group;  // these shapes need no padding
    w.group = group;
    w.storage = take(DType::U8, {out_dim * in_dim / (f.levels == DType::U4 ? 2 : 1)});
    w.scales = take(f.scales, {n_scales});
    if (f.with_mins) w.mins = take(DType::F32, {n_scales});
    w.n_bytes = w.storage.view().n_bytes() + w.scales.view().n_bytes() +
                (f.with_mins ? w.mins.view().n_bytes() : 0);
    return w;
  }

  DeviceTensor take(DType dtype, const Shape& shape) {
    const size_t n_bytes = (size_t(bytes_of(dtype, shape)) + 255) / 256 * 256;
    if (at_ + n_bytes > size_) at_ = 0;
    const size_t begin = at_;
    at_ += n_bytes;
    return DeviceTensor({data() + begin, dtype, shape}, [](void*) {});
  }

 private:
  DeviceTensor memory_;
  size_t size_, at_ = 0;
};

// Median of seven replays of what `work` launches.
template <typename F>
double graph_us(cudaStream_t stream, F&& work) {
  const cuda::GraphExec graph = cuda::capture_graph(stream, work);
  const cuda::Event before = cuda::make_event(), after = cuda::make_event();
  std::vector<double> times;
  for (int run = 0; run < 9; ++run) {
    MINFER_CUDA_CHECK(cudaEventRecord(before.get(), stream));
    MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream));
    MINFER_CUDA_CHECK(cudaEventRecord(after.get(), stream));
    MINFER_CUDA_CHECK(cudaEventSynchronize(after.get()));
    float ms = 0;
    MINFER_CUDA_CHECK(cudaEventElapsedTime(&ms, before.get(), after.get()));
    if (run >= 2) times.push_back(double(ms) * 1e3);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Activations {
  explicit Activations(int64_t n_tokens)
      : residual(cuda::allocate_device(DType::F32, {n_tokens, kDim})),
        x(cuda::allocate_device(DType::F16, {n_tokens, kDim})),
        h(cuda::allocate_device(DType::F16, {n_tokens, kFfnDim})),
        q(cuda::allocate_device(DType::F16, {n_tokens, kDim})),
        k(cuda::allocate_device(DType::F16, {n_tokens, kDim})),
        v(cuda::allocate_device(DType::F16, {n_tokens, kDim})),
        logits(cuda::allocate_device(DType::F32, {n_tokens, kVocab})),
        weight(cuda::allocate_device(DType::F16, {kDim})) {
    std::mt19937 engine(2);
    for (const DeviceTensor* t : {&residual, &x, &h, &q, &k, &v, &weight}) {
      const int64_t n = t->view().n_elements();
      HostTensor host(t->view().dtype, t->view().shape);
      visit_float(host.view().dtype, [&]<typename T>() {
        for (int64_t i = 0; i < n; ++i) {
          host.as<T>()[i] = from_f32<T>(float(engine() >> 8) * 0x1p-23f - 1);
        }
      });
      MINFER_CUDA_CHECK(cudaMemcpy(t->view().data, host.view().data, size_t(host.view().n_bytes()),
                                   cudaMemcpyHostToDevice));
    }
    norm = {weight, {}, 1e-5f, true};
  }
  DeviceTensor residual, x, h, q, k, v, logits, weight;
  MatvecNorm norm;
};

// The five products of a step; each takes matrices of its own from the pool.
enum class Which { Qkv, Output, GateUp, Down, Head };
constexpr const char* kNames[] = {"qkv", "o", "gate_up", "down", "head"};

std::vector<Matrix> matrices_of(Pool& pool, const Format& f, Which which) {
  std::vector<Matrix> w;
  switch (which) {
    case Which::Qkv:
      for (int i = 0; i < 3; ++i) w.push_back(pool.matrix(f, kDim, kDim));
      break;
    case Which::Output:
      w.push_back(pool.matrix(f, kDim, kDim));
      break;
    case Which::GateUp:
      for (int i = 0; i < 2; ++i) w.push_back(pool.matrix(f, kFfnDim, kDim));
      break;
    case Which::Down:
      w.push_back(pool.matrix(f, kDim, kFfnDim));
      break;
    case Which::Head:
      w.push_back(pool.matrix(f, kVocab, kDim));
      break;
  }
  return w;
}

void product(cudaStream_t stream, const Activations& a, Which which, const std::vector<Matrix>& w,
             const cuda::MatvecTuning& tuning = {}) {
  switch (which) {
    case Which::Qkv: {
      const MatvecPart parts[] = {{&w[0], a.q, {}}, {&w[1], a.k, {}}, {&w[2], a.v, {}}};
      return cuda::matvec_as(stream, a.residual, &a.norm, parts, Epilogue::Store, tuning);
    }
    case Which::Output: {
      const MatvecPart part{&w[0], a.residual, {}};
      return cuda::matvec_as(stream, a.q, nullptr, {&part, 1}, Epilogue::Accumulate, tuning);
    }
    case Which::GateUp: {
      const MatvecPart parts[] = {{&w[0], a.h, {}}, {&w[1], {}, {}}};
      return cuda::matvec_as(stream, a.residual, &a.norm, parts, Epilogue::SwiGlu, tuning);
    }
    case Which::Down: {
      const MatvecPart part{&w[0], a.residual, {}};
      return cuda::matvec_as(stream, a.h, nullptr, {&part, 1}, Epilogue::Accumulate, tuning);
    }
    case Which::Head: {
      const MatvecPart part{&w[0], a.logits, {}};
      return cuda::matvec_as(stream, a.residual, &a.norm, {&part, 1}, Epilogue::Store, tuning);
    }
  }
}

int64_t bytes_of_all(const std::vector<Matrix>& w) {
  int64_t n = 0;
  for (const Matrix& m : w) n += m.n_bytes;
  return n;
}

void report(const char* what, const char* format, int64_t n_tokens, double us, double n_bytes,
            double limit) {
  const double rate = n_bytes / (us * 1e-6);
  std::printf(
      "{\"what\":\"%s\",\"format\":\"%s\",\"tokens\":%d,\"us\":%.2f,\"MB\":%.2f,\"GBps\":%.0f,"
      "\"of_read_limit\":%.3f}\n",
      what, format, int(n_tokens), us, n_bytes * 1e-6, rate * 1e-9, rate / limit);
  std::fflush(stdout);
}

// The products of 32 layers one behind the other, for each choice of MatvecTuning.
void chain(cudaStream_t stream, Pool& pool, const Activations& a, const Format& f, double limit) {
  std::vector<std::vector<Matrix>> sets;
  double n_bytes = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Which which : {Which::Qkv, Which::Output, Which::GateUp, Which::Down}) {
      sets.push_back(matrices_of(pool, f, which));
      n_bytes += double(bytes_of_all(sets.back()));
    }
  }
  const int64_t n_tokens = a.residual.view().shape[0];
  const cuda::MatvecTuning usual;
  for (const int trigger_left : {0, 1, 3, 6, -1}) {
    for (const int team_shift : {0, 1, 2, 4}) {
      if ((n_tokens > 1 || trigger_left != usual.trigger_left) && team_shift != 1) continue;
      if (n_tokens > 1 && trigger_left != usual.trigger_left) continue;
      const bool is_usual = trigger_left == usual.trigger_left && team_shift == 1;
      cuda::MatvecTuning tuning = usual;
      if (!is_usual) {
        tuning.trigger_left = trigger_left;
        if (trigger_left == usual.trigger_left) {
          tuning.team_shift_float = team_shift;
          tuning.team_shift_packed = team_shift;
        }
      }
      const double us = graph_us(stream, [&] {
        for (size_t i = 0; i < sets.size(); ++i) product(stream, a, Which(i % 4), sets[i], tuning);
      });
      const std::string what = is_usual
                                   ? "32 layers without attention"
                                   : "32 layers, trigger_left " + std::to_string(trigger_left) +
                                         (trigger_left == usual.trigger_left
                                              ? ", teams of " + std::to_string(1 << team_shift)
                                              : "");
      report(what.c_str(), f.name, n_tokens, us, n_bytes, limit);
    }
  }
}

// The matrices of a product made F16 in one call; bytes read and written. Outs take turns too.
void dequantize(cudaStream_t stream, Pool& pool, Pool& halves, const Format& f, Which which,
                double limit) {
  std::vector<std::vector<Matrix>> sets;
  std::vector<std::vector<DeviceTensor>> outs;
  double n_bytes = 0;
  for (int i = 0; i < kLaunches; ++i) {
    sets.push_back(matrices_of(pool, f, which));
    outs.emplace_back();
    n_bytes += double(bytes_of_all(sets.back()));
    for (const Matrix& w : sets.back()) {
      outs.back().push_back(halves.take(DType::F16, {w.out_dim, w.in_dim}));
      n_bytes += double(outs.back().back().view().n_bytes());
    }
  }
  const double us = graph_us(stream, [&] {
    for (size_t i = 0; i < sets.size(); ++i) {
      std::vector<cuda::DequantizePart> parts;
      for (size_t j = 0; j < sets[i].size(); ++j) parts.push_back({&sets[i][j], outs[i][j]});
      cuda::dequantize_rows(stream, parts);
    }
  });
  const std::string what = std::string("dequantize ") + kNames[int(which)];
  report(what.c_str(), f.name, 0, us / kLaunches, n_bytes / kLaunches, limit);
}

void run() {
  cuda::use_device(0);
  const cuda::Stream stream = cuda::make_stream();
  const double limit = measure_cuda_read_bandwidth(0);
  Pool pool(size_t{13'500'000'000} / 256 * 256);
  std::printf("{\"what\":\"read limit\",\"GBps\":%.0f}\n", limit * 1e-9);

  Pool halves(size_t{1} << 31);
  for (const Format& f : {kU8Row, kU4G64, kQ4K}) {
    for (const Which which : {Which::Qkv, Which::Output, Which::GateUp, Which::Down, Which::Head}) {
      dequantize(stream.get(), pool, halves, f, which, limit);
    }
  }
  for (const int64_t n_tokens : {int64_t{1}, cuda::kMaxMatvecTokens}) {
    const Activations a(n_tokens);
    for (const Format& f : {kF16, kU8Row, kU4G64, kQ4K}) {
      for (const Which which :
           {Which::Qkv, Which::Output, Which::GateUp, Which::Down, Which::Head}) {
        std::vector<std::vector<Matrix>> sets;
        for (int i = 0; i < kLaunches; ++i) sets.push_back(matrices_of(pool, f, which));
        const double us = graph_us(stream.get(), [&] {
          for (const auto& w : sets) product(stream.get(), a, which, w);
        });
        report(kNames[int(which)], f.name, n_tokens, us / kLaunches, double(bytes_of_all(sets[0])),
               limit);
      }
    }
    for (const Format& f : {kF16, kU8Row, kU4G64, kQ4K}) chain(stream.get(), pool, a, f, limit);
  }
}

}  // namespace
}  // namespace minfer::bench

int main() {
  try {
    minfer::bench::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
