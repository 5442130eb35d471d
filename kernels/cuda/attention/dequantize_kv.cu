#include "kernels/cuda/attention/cache.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kOctets = 4;  // octets of a thread: enough reads in flight to hide their latency

// halves[h, j] = (codes[h, j] - 128) scales[h, j] for position j of head h, of keys and of values,
// from page first_page of the page table on
//
//   codes     in the pages of the cache
//   halves    in pages that follow one another, [.., n_kv_heads, kPage, head_dim]
//   launch    blockIdx.z is a head, the last ones first: attention begins with the first heads,
//             which are then the likeliest to be still in L2; y is keys or values; in x a thread
//             takes kOctets times 8 adjacent codes, a block apart
//   requires  head_dim a multiple of 8, 8-byte aligned codes, 16-byte aligned halves
//   maths     multiplied in f32, one rounding to F16: infinite past 65504, as in an F16 cache
//   moves     n_kv_heads kv_len (head_dim + 4) bytes read, marked as the first to leave L2, and
//             n_kv_heads kv_len head_dim * 2 written, for each of keys and values
__global__ void __launch_bounds__(kThreads)
    dequantize_kv_kernel(const Cache cache, __half* keys, __half* values, int first_page,
                         int octets_per_row, int octets_per_head) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const bool is_key = blockIdx.y == 0;
  const int head = int(gridDim.z - 1 - blockIdx.z);
  const auto* const codes = static_cast<const uint2*>(is_key ? cache.keys : cache.values);
  const float* const scales = is_key ? cache.key_scales : cache.value_scales;
  auto* const halves = reinterpret_cast<uint4*>(is_key ? keys : values);
  const int octets_per_page = kPage * octets_per_row;

  const int first = int(blockIdx.x) * (kThreads * kOctets) + int(threadIdx.x);
  uint2 octet[kOctets];
  float scale[kOctets];
#pragma unroll
  for (int i = 0; i < kOctets; ++i) {
    const int at = first + i * kThreads;
    if (at >= octets_per_head) break;
    const int64_t row = cache.row(head, first_page * kPage + at / octets_per_row);
    octet[i] = __ldcs(codes + row * octets_per_row + at % octets_per_row);
    scale[i] = scales[row];
  }
#pragma unroll
  for (int i = 0; i < kOctets; ++i) {
    const int at = first + i * kThreads;
    if (at >= octets_per_head) break;
    // Puts a byte in the lowest byte of the f32 2^23, whose last place counts ones.
    const auto value = [&](uint32_t word, int byte) {
      const float code = __uint_as_float(__byte_perm(word, 0x4B000000, 0x7650 + byte));
      return __fmul_rn(code - (8388608.0f + 128), scale[i]);
    };
    const auto pair = [&](uint32_t word, int byte) {
      const __half2 x = __floats2half2_rn(value(word, byte), value(word, byte + 1));
      return *reinterpret_cast<const uint32_t*>(&x);
    };
    const int64_t page = int64_t{at / octets_per_page} * cache.n_kv_heads + head;
    halves[page * octets_per_page + at % octets_per_page] = make_uint4(
        pair(octet[i].x, 0), pair(octet[i].x, 2), pair(octet[i].y, 0), pair(octet[i].y, 2));
  }
}

}  // namespace

void dequantize_kv(cudaStream_t stream, Tensor keys, Tensor values, const KvLayer& cache,
                   const CachePlace& place, int64_t first_page, int64_t kv_len) {
  const int64_t n_heads = cache.n_kv_heads, head_dim = cache.head_dim;
  const int64_t n_pages = pages_for(kv_len) - first_page;
  const int64_t n_positions = kv_len - first_page * kPage;
  check_place("dequantize_kv", {place.pages, place.n_pages, 0}, kv_len);
  MINFER_CHECK(cache.dtype == DType::U8 && head_dim % 8 == 0 && keys.dtype == DType::F16 &&
                   keys.shape == (Shape{n_pages, n_heads, kPage, head_dim}) &&
                   values.dtype == keys.dtype && values.shape == keys.shape,
               "dequantize_kv: ", keys.dtype, " ", keys.shape, " and ", values.dtype, " ",
               values.shape, " of ", kv_len, " positions of a cache of ", cache.dtype);
  const int octets_per_head = narrow<int>(n_positions * (head_dim / 8));
  // Indices past the last octet, which a block computes too, must also fit an int.
  MINFER_CHECK(octets_per_head <= INT32_MAX - kThreads * kOctets, "dequantize_kv: ", kv_len,
               " positions");
  const dim3 grid(narrow<unsigned>(ceil_div(octets_per_head, kThreads * kOctets)), 2,
                  narrow<unsigned>(n_heads));
  launch(dequantize_kv_kernel, grid, dim3(kThreads), 0, stream, cache_of(cache, place.pages),
         data_of<__half>(keys), data_of<__half>(values), narrow<int>(first_page),
         narrow<int>(head_dim / 8), octets_per_head);
}

}  // namespace minfer::cuda::attention
