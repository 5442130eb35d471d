// What tests of kernels call besides the kernels, if these are emulated: the parts of the CUDA
// runtime and of kernels/cuda that access a card, and a plain version of rope_append.
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/half.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/sampling/choose_token.h"
#include "kernels/cuda/tensor_map.h"
#include "tests/kernels/cuda/emulated/emulator.h"

namespace {

using minfer::emulated::Grid;

// One work of a stream: a launch, or something else.
struct Work {
  std::optional<Grid> grid;
  std::function<void()> other;

  void run() const { grid ? minfer::emulated::run(*grid) : other(); }
};
using Works = std::vector<Work>;
Works* g_capture = nullptr;  // the graph that is being captured
size_t g_cards = 1;
std::vector<const Works*> g_launched;  // graphs, of a set that is not whole yet

void submit_work(Work work) {
  g_capture != nullptr ? g_capture->push_back(std::move(work)) : work.run();
}

// Runs graphs of as many works, each on a card of its own.
void run_graphs(const std::vector<const Works*>& graphs) {
  for (size_t i = 0; i < graphs.front()->size(); ++i) {
    const std::optional<Grid>& first = graphs.front()->at(i).grid;
    if (first && first->is_cooperative) {
      std::vector<Grid> grids;
      for (const Works* works : graphs) grids.push_back(*works->at(i).grid);
      minfer::emulated::run_together(grids);
    } else {
      for (const Works* works : graphs) works->at(i).run();
    }
  }
}

}  // namespace

namespace minfer::emulated {

void submit(std::function<void()> work) { submit_work({{}, std::move(work)}); }
void submit(Grid grid) { submit_work({std::move(grid), {}}); }
void set_cards(int n_cards) { g_cards = static_cast<size_t>(n_cards); }

}  // namespace minfer::emulated

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  g_capture = new Works;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(std::exchange(g_capture, nullptr));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Works(*reinterpret_cast<Works*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  g_launched.push_back(reinterpret_cast<const Works*>(exec));
  if (g_launched.size() == g_cards) run_graphs(std::exchange(g_launched, {}));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Works*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Works*>(exec);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t n_bytes) {
  *memory = std::malloc(n_bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind,
                            cudaStream_t) {
  minfer::emulated::submit([=] { std::memcpy(to, from, n_bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t n_bytes, cudaStream_t) {
  minfer::emulated::submit([=] { std::memset(to, value, n_bytes); });
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t n_bytes, cudaMemcpyKind) {
  std::memcpy(to, from, n_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t n_bytes) {
  std::memset(to, value, n_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t n_bytes, size_t n_rows) {
  for (size_t row = 0; row < n_rows; ++row) {
    std::memset(static_cast<uint8_t*>(to) + row * pitch, value, n_bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute == cudaDevAttrMultiProcessorCount) {
    *value = minfer::emulated::kBlocksAtOnce;
  } else if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) {
    *value = 227 << 10;
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

}  // extern "C"

namespace minfer::cuda {

DeviceProperties use_device(int) {
  return {.name = "emulated", .compute_capability = 90, .n_sms = emulated::kBlocksAtOnce};
}
bool runs_hopper_code(const void*) { return true; }
bool kernels_are_of_sm90() { return true; }
Stream make_stream() { return nullptr; }
CardChange::CardChange() = default;
void CardChange::to(int) {}
Event make_event_without_time() { return nullptr; }

DeviceTensor allocate_device(DType dtype, const Shape& shape) {
  const auto n_bytes = static_cast<size_t>(bytes_of(dtype, shape.n_elements()));
  return {{std::aligned_alloc(256, (n_bytes / 256 + 1) * 256), dtype, shape}, std::free};
}

// The choice of tokens is not emulated.
std::optional<TokenChoice> token_choice(const DecodeSampling&, int64_t, int64_t) { return {}; }
void choose_token(cudaStream_t, const float*, const TokenChoice*, StepInput*, uint32_t, TokenId*,
                  bool) {}
void choose_tokens(cudaStream_t, Tensor, const TokenChoice*, TokenId*, bool) {}
ChoicesOnCard::ChoicesOnCard(int64_t) : host_(1) {}
void ChoicesOnCard::set(cudaStream_t, std::span<const TokenChoice>) {}

CUtensorMap make_map(const void* data, DType dtype, int64_t rows, int64_t columns, int box_rows,
                     int box_row_bytes) {
  const auto size = static_cast<int>(bytes_of(dtype, 1));
  return emulated::pack({.data = static_cast<uint8_t*>(const_cast<void*>(data)),
                         .rank = 2,
                         .element_bytes = size,
                         .swizzle_bytes = box_row_bytes,
                         .extents = {columns, rows},
                         .strides = {columns * size},
                         .box = {box_row_bytes / size, box_rows}});
}
CUtensorMap make_heads_map(const void* data, int64_t rows, int64_t n_heads, int64_t head_dim,
                           int64_t head_stride, int box_rows) {
  return emulated::pack({.data = static_cast<uint8_t*>(const_cast<void*>(data)),
                         .rank = 3,
                         .element_bytes = 2,
                         .swizzle_bytes = 128,
                         .extents = {head_dim, rows, n_heads},
                         .strides = {head_dim * 2, head_stride * 2},
                         .box = {64, box_rows}});
}

void rope_append(cudaStream_t, KvLayer& cache, const CachePlace& place, Tensor q, Tensor k,
                 Tensor v, Tensor cos_sin) {
  MINFER_CHECK(q.dtype == DType::F16 && cache.dtype == DType::F16, "rope_append: ", q.dtype);
  const int64_t head_dim = cache.head_dim, n_pairs = head_dim / 2;
  const auto row_of = [&](const Tensor& x, int64_t token, int64_t head) {
    return data_of<f16>(x) + (token * x.shape[1] + head) * head_dim;
  };
  const auto rotate = [&](f16* to, const f16* from, int64_t token) {
    const auto* const angles = data_of<float>(cos_sin) + (place.pos + token) * head_dim;
    for (int64_t i = 0; i < n_pairs; ++i) {
      const float a = to_f32(from[i]), b = to_f32(from[i + n_pairs]);
      const float cosine = angles[2 * i], sine = angles[2 * i + 1];
      to[i] = to_f16(std::fma(a, cosine, -__fmul_rn(b, sine)));
      to[i + n_pairs] = to_f16(std::fma(b, cosine, __fmul_rn(a, sine)));
    }
  };
  for (int64_t token = 0; token < q.shape[0]; ++token) {
    for (int64_t head = 0; head < q.shape[1]; ++head) {
      rotate(row_of(q, token, head), row_of(q, token, head), token);
    }
    for (int64_t head = 0; head < cache.n_kv_heads; ++head) {
      const int64_t pos = place.pos + token, page = place.pages[pos / kPagePositions];
      const int64_t row = (page * cache.n_kv_heads + head) * kPagePositions + pos % kPagePositions;
      const int64_t at = row * head_dim;
      rotate(data_of<f16>(cache.keys) + at, row_of(k, token, head), token);
      std::copy_n(row_of(v, token, head), head_dim, data_of<f16>(cache.values) + at);
    }
  }
}

}  // namespace minfer::cuda
