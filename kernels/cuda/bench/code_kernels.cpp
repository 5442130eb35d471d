#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/math.h"
#include "kernels/cuda/bench/decode_gemvs.h"
#include "kernels/cuda/bench/gemm_timer.h"
#include "kernels/cuda/bench/kernel_rig.h"

namespace minfer::cuda {
namespace {

// Hands out rows of random codes from a ring of memory.
class CodePool {
 public:
  CodeRows take(int64_t n, int64_t in_dim) {
    const int64_t n_bytes = align_up(n * in_dim, 256);
    if (at_ + n_bytes > kBytes) at_ = 0;
    char* const codes = static_cast<char*>(codes_.view().data) + at_;
    at_ += n_bytes;
    return {{codes, DType::U8, {n, in_dim}}, {scales_.view().data, DType::F32, {n}}};
  }

 private:
  static constexpr int64_t kBytes = int64_t{1} << 30;
  DeviceTensor codes_ = random_tensor(DType::U8, {kBytes});
  DeviceTensor scales_ = random_tensor(DType::F32, {kBenchVocab}, 0.001f);
  int64_t at_ = 0;
};

void time_gemm(cudaStream_t stream, const KernelChoice& choice) {
  constexpr int kLaunches = 8;
  std::optional<CodePool> codes;
  for (int64_t m : {512, 2048, 4096}) {
    const std::pair<const char*, TimedGemm> cases[] = {
        {"codes_store", {m, 3 * kBenchDim, kBenchDim, Epilogue::Store, 3}},
        {"codes_accumulate", {m, kBenchDim, kBenchDim, Epilogue::Accumulate}},
        {"codes_accumulate", {m, kBenchDim, kBenchFfnDim, Epilogue::Accumulate}},
        {"codes_swiglu", {m, 2 * kBenchFfnDim, kBenchDim, Epilogue::SwiGlu, 2}}};
    for (const auto& [name, c] : cases) {
      if (!choice.wants(name, c.shape("int8"))) continue;
      if (!codes) codes.emplace();
      const DType out_dtype = c.epilogue == Epilogue::Accumulate ? DType::F32 : DType::F16;
      const int64_t n = c.n / c.n_parts;
      std::vector<DeviceTensor> outs;
      for (int part = 0; part < c.n_parts; ++part) {
        outs.push_back(allocate_device(out_dtype, {m, n}));
        const Tensor out = outs.back();
        MINFER_CUDA_CHECK(cudaMemset(out.data, 0, static_cast<size_t>(out.n_bytes())));
      }
      MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for it
      const double us = graph_us(stream, kLaunches, [&] {
        for (int i = 0; i < kLaunches; ++i) {
          const CodeRows x = codes->take(m, c.k);
          std::vector<CodesPart> parts;
          for (const DeviceTensor& out : outs) parts.push_back({codes->take(n, c.k), out, {}});
          multiply_codes(stream, x, parts, c.epilogue);
        }
      });
      choice.done({name, c.shape("int8"), Bound::Flops, us * 1e-6, c.work(1)});
    }
  }
}

void time_rows_of_inputs(cudaStream_t stream, TensorPool& inputs, TensorPool& outputs,
                         const KernelChoice& choice) {
  constexpr int kLaunches = 32;
  constexpr int64_t kTokens = 8192;
  for (const int64_t dim : {kBenchDim, kBenchFfnDim}) {
    const std::string shape = cat(kTokens, " x ", dim, " f16");
    if (!choice.wants("quantize_rows", shape)) continue;
    const double us = graph_us(stream, kLaunches, [&] {
      for (int i = 0; i < kLaunches; ++i) {
        const DeviceTensor codes = outputs.take(DType::U8, {kTokens, dim});
        const DeviceTensor scales = outputs.take(DType::F32, {kTokens});
        quantize_rows(stream, {codes, scales}, inputs.take(DType::F16, {kTokens, dim}));
      }
    });
    const auto bytes = double(kTokens * (3 * dim + 4));
    const double flops = element_flops::kQuantize * double(kTokens * dim);
    choice.done({"quantize_rows", shape, Bound::Copy, us * 1e-6, {bytes, flops}});
  }
}

void time_rows_of_weights(cudaStream_t stream, TensorPool& inputs, TensorPool& outputs,
                          const WeightFormat& format, DecodeGemv which,
                          const KernelChoice& choice) {
  constexpr int kLaunches = 32;
  std::vector<std::vector<Matrix>> sets;
  for (int i = 0; i < kLaunches; ++i) sets.push_back(matrices_of(inputs, format, which));
  const std::string shape = shape_of(format, sets[0]);
  if (!choice.wants("unpack_codes", shape)) return;
  auto bytes = double(bytes_of_all(sets[0]));
  for (const Matrix& w : sets[0]) bytes += double(w.out_dim * w.in_dim);
  const double us = graph_us(stream, kLaunches, [&] {
    for (const auto& set : sets) {
      std::vector<UnpackPart> parts;
      for (const Matrix& w : set) {
        const DeviceTensor codes = outputs.take(DType::U8, {w.out_dim, w.in_dim});
        const DeviceTensor scales = outputs.take(DType::F32, {w.out_dim});
        parts.push_back({&w, {codes, scales}});
      }
      unpack_codes(stream, parts);
    }
  });
  const double flops = element_flops::kDequantize * double(elements_of_all(sets[0]));
  choice.done({"unpack_codes", shape, Bound::Copy, us * 1e-6, {bytes, flops}});
}

}  // namespace

// The bound of the GEMMs is the F16 rate of the tensor cores, whose int8 rate is twice that.
void time_code_kernels(KernelRig& rig) {
  if (can_multiply_codes()) time_gemm(rig.stream(), rig.choice);
  time_rows_of_inputs(rig.stream(), rig.inputs, rig.outputs, rig.choice);
  for (const WeightFormat& format : {kInt8Weights, kInt4Weights}) {
    for (const DecodeGemv which : kDecodeGemvs) {
      time_rows_of_weights(rig.stream(), rig.inputs, rig.outputs, format, which, rig.choice);
    }
  }
}

}  // namespace minfer::cuda
