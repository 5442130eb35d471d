#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kOctets = 4;  // of a thread: as many reads under way hide their latency

struct Rows {
  const uint8_t* levels;  // [n_kv_heads, capacity, head_dim]
  const float* scales;    // [n_kv_heads, capacity]
  __half* halves;         // [n_kv_heads, kv_len, head_dim]
};

// halves[h, j] = (levels[h, j] - 128) scales[h, j], of keys and of values
//
//   launch    blockIdx.z is a head, the last ones first: attention begins with the first, which are
//             then the likeliest to be in L2 still; y is keys or values; in x a thread takes
//             kOctets times 8 adjacent levels, a block apart
//   requires  head_dim a multiple of 8, 8-byte aligned levels, 16-byte aligned halves
//   maths     product in f32, one rounding to F16: past 65504 infinite, as in a cache of F16
//   moves     n_kv_heads kv_len (head_dim + 4) bytes read, marked as the first to leave L2, and
//             n_kv_heads kv_len head_dim * 2 written, for each of keys and values
__global__ void __launch_bounds__(kThreads)
    dequantize_kv_kernel(const Rows keys, const Rows values, int64_t capacity, int64_t kv_len,
                         int octets_per_row, int octets_per_head) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const Rows& rows = blockIdx.y == 0 ? keys : values;
  const int64_t head = gridDim.z - 1 - blockIdx.z;
  const auto* const levels =
      reinterpret_cast<const uint2*>(rows.levels) + head * capacity * octets_per_row;
  const float* const scales = rows.scales + head * capacity;
  auto* const halves = reinterpret_cast<uint4*>(rows.halves) + head * kv_len * octets_per_row;

  const int first = int(blockIdx.x) * (kThreads * kOctets) + int(threadIdx.x);
  uint2 octet[kOctets];
  float scale[kOctets];
#pragma unroll
  for (int i = 0; i < kOctets; ++i) {
    const int at = first + i * kThreads;
    if (at >= octets_per_head) break;
    octet[i] = __ldcs(levels + at);
    scale[i] = scales[at / octets_per_row];
  }
#pragma unroll
  for (int i = 0; i < kOctets; ++i) {
    const int at = first + i * kThreads;
    if (at >= octets_per_head) break;
    // A byte as the last of an f32 of 2^23, which counts in ones.
    const auto value = [&](uint32_t word, int byte) {
      const float level = __uint_as_float(__byte_perm(word, 0x4B000000, 0x7650 + byte));
      return __fmul_rn(level - (8388608.0f + 128), scale[i]);
    };
    const auto pair = [&](uint32_t word, int byte) {
      const __half2 x = __floats2half2_rn(value(word, byte), value(word, byte + 1));
      return *reinterpret_cast<const uint32_t*>(&x);
    };
    halves[at] = make_uint4(pair(octet[i].x, 0), pair(octet[i].x, 2), pair(octet[i].y, 0),
                            pair(octet[i].y, 2));
  }
}

}  // namespace

void dequantize_kv(cudaStream_t stream, Tensor keys, Tensor values, const KvLayer& cache) {
  const int64_t n_heads = cache.n_kv_heads, head_dim = cache.head_dim, kv_len = keys.shape[1];
  MINFER_CHECK(cache.dtype == DType::U8 && head_dim % 8 == 0 && kv_len <= cache.capacity &&
                   keys.dtype == DType::F16 && keys.shape == (Shape{n_heads, kv_len, head_dim}) &&
                   values.dtype == keys.dtype && values.shape == keys.shape,
               "dequantize_kv: ", keys.dtype, " ", keys.shape, " and ", values.dtype, " ",
               values.shape, " of a cache of ", cache.dtype, ", ", cache.capacity, " positions");
  const auto rows = [](const DeviceTensor& levels, const DeviceTensor& scales, const Tensor& out) {
    return Rows{data_of<const uint8_t>(levels), data_of<const float>(scales), data_of<__half>(out)};
  };
  const int octets_per_head = narrow<int>(kv_len * (head_dim / 8));
  // What a block reaches past the last octet must be an int too.
  MINFER_CHECK(octets_per_head <= INT32_MAX - kThreads * kOctets, "dequantize_kv: ", kv_len,
               " positions");
  const dim3 grid(narrow<unsigned>(ceil_div(octets_per_head, kThreads * kOctets)), 2,
                  narrow<unsigned>(n_heads));
  launch(dequantize_kv_kernel, grid, dim3(kThreads), 0, stream,
         rows(cache.keys, cache.key_scales, keys), rows(cache.values, cache.value_scales, values),
         cache.capacity, kv_len, narrow<int>(head_dim / 8), octets_per_head);
}

}  // namespace minfer::cuda::attention
