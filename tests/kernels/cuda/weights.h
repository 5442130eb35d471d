#pragma once

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/launchers.h"
#include "tests/support/cuda_tensors.h"
#include "tests/support/random_blocks.h"

// Matrices of every type, on the host and on the card, for tests of kernels that read them.
namespace minfer::test {

// A group of 0 means floats of that type, kRow one scale per row. `weights` may be a Q type of GGUF
// whose scales are products: product_formats().
constexpr int64_t kRow = -1;
struct Format {
  DType weights = DType::F16, scales = DType::F16;
  bool with_mins = false;
  int64_t group = 0;
  CodeTable table = CodeTable::None;
};

inline std::ostream& operator<<(std::ostream& out, const Format& f) {
  out << f.weights;
  if (f.group != 0) out << " " << f.scales << (f.with_mins ? " mins" : "") << " group " << f.group;
  if (f.table != CodeTable::None) out << " table " << int(f.table);
  return out;
}

inline Format of_group(DType codes, DType scales, bool with_mins, int64_t group) {
  return {codes, scales, with_mins, group};
}

// Codes that are indices of a table, as GGUF has them; and a group that it does not have.
inline const Format kTableFormats[] = {
    {DType::U4, DType::F16, false, 32, CodeTable::Iq4},
    {DType::U4, DType::F32, false, 32, CodeTable::E2m1},
    {DType::U4, DType::F32, false, 16, CodeTable::Iq4},
};

// GGUF's blocks whose scales are products.
inline std::vector<Format> product_formats() {
  std::vector<Format> formats;
  for (const DType dtype :
       {DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_XS}) {
    const GroupFormat format = group_format(dtype);
    formats.push_back({dtype, DType::U8, format.has_mins, format.group, format.table});
  }
  return formats;
}

inline cudaStream_t stream() {
  static const cuda::Stream stream = cuda::make_stream();
  return stream.get();
}

inline void fill_normal(const HostTensor& to, uint64_t seed, float scale) {
  const HostTensor values = random_normal(seed, to.view().shape, to.view().dtype, scale);
  std::memcpy(to.view().data, values.view().data, size_t(to.view().n_bytes()));
}

// Packs in two calls, so that first_row is not always 0.
inline Matrix pack(const QuantizedMatrix& q) {
  Matrix w = cuda::allocate_codes(q.codes.dtype, q.scales.dtype, q.asymmetric(), q.out_dim(),
                                  q.in_dim(), q.group, q.table);
  const GroupFormat format{q.bits(), q.group, q.asymmetric(), q.scales.dtype, q.table};
  EXPECT_EQ(
      w.n_bytes,
      cuda_packed_bytes({.out_dim = q.out_dim(), .in_dim = q.in_dim(), .groups = format}).sum());
  const int64_t middle = q.out_dim() / 32 * 16;
  for (const auto& [begin, n] : {std::pair{int64_t{0}, middle}, {middle, q.out_dim() - middle}}) {
    if (n == 0) continue;
    const QuantizedMatrix rows = q.rows(begin, n);
    const DeviceTensor codes = to_device(rows.codes), scales = to_device(rows.scales);
    const DeviceTensor mins = rows.mins ? to_device(rows.mins) : DeviceTensor();
    cuda::pack_codes(stream(), w, {codes, scales, mins, q.group, q.table}, begin);
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  }
  return w;
}

inline HostTensor tensor_of(const std::vector<uint8_t>& bytes) {
  HostTensor host(DType::U8, {std::ssize(bytes)});
  std::memcpy(host.view().data, bytes.data(), bytes.size());
  return host;
}

inline Matrix pack_products(const Tensor& blocks, const QuantizedMatrix& q) {
  Matrix w = cuda::allocate_products(q.out_dim(), q.in_dim(), group_format(blocks.dtype));
  EXPECT_EQ(w.n_bytes, cuda_packed_bytes({.out_dim = q.out_dim(),
                                          .in_dim = q.in_dim(),
                                          .groups = group_format(blocks.dtype)})
                           .sum());
  cuda::pack_product_codes(stream(), w, to_device(q.codes));
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  const HostTensor records = tensor_of(cuda::packed_records(blocks));
  const Tensor to = w.scales;
  EXPECT_EQ(to.n_bytes(), records.view().n_bytes());
  MINFER_CUDA_CHECK(
      cudaMemcpy(to.data, records.view().data, size_t(to.n_bytes()), cudaMemcpyHostToDevice));
  return w;
}

// A matrix on the host and on the card.
struct Weights {
  Weights(const Format& f, int64_t out_dim, int64_t in_dim, uint64_t seed) : format(f) {
    const float size = 1 / std::sqrt(float(in_dim));
    if (f.group == 0) {
      floats.reset(f.weights, {out_dim, in_dim});
      fill_normal(floats, seed, size);
      matrix.storage = to_device(floats);
      matrix.out_dim = out_dim;
      matrix.in_dim = in_dim;
      matrix.dtype = f.weights;
      matrix.n_bytes = floats.view().n_bytes();
      return;
    }
    if (f.scales == DType::U8) {
      blocks = random_blocks(f.weights, {out_dim, in_dim}, 2.0f, seed);
      quantized = to_quantized_matrix(blocks);
      matrix = pack_products(blocks, quantized.view());
      return;
    }
    quantized = make_quantized_matrix(f.weights, f.scales, out_dim, in_dim,
                                      f.group == kRow ? in_dim : f.group, f.with_mins);
    quantized.table = f.table;
    std::mt19937_64 engine(seed);
    auto* const codes = static_cast<uint8_t*>(quantized.codes.view().data);
    for (int64_t i = 0; i < quantized.codes.view().n_bytes(); ++i) codes[i] = uint8_t(engine());
    fill_normal(quantized.scales, seed + 1, size / (f.weights == DType::U4 ? 5.0f : 80.0f));
    if (f.with_mins) fill_normal(quantized.mins, seed + 2, size);
    matrix = pack(quantized.view());
  }

  // Lays the codes out row by row, as Backend::pack_table does; not those of products.
  void lay_by_rows() {
    matrix.by_rows = true;
    matrix.storage = to_device(quantized.codes);
    matrix.dtype = quantized.codes.view().dtype;
    matrix.scales = to_device(quantized.scales);
    if (quantized.mins.view()) matrix.mins = to_device(quantized.mins);
  }

  // The value of an element, and the sum of the magnitudes of its terms: the code and the zero code
  // count separately.
  std::pair<double, double> at(int64_t row, int64_t column) const {
    const int64_t in_dim = matrix.in_dim;
    if (format.group == 0) {
      const double value = double(floats.at(row * in_dim + column));
      return {value, std::abs(value)};
    }
    const QuantizedMatrix q = quantized.view();
    const auto* codes = static_cast<const uint8_t*>(q.codes.data);
    const int64_t i = row * in_dim + column, group = row * q.n_groups() + column / q.group;
    const int code = q.bits() == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
    const double scale = double(quantized.scales.at(group));
    const double min = q.asymmetric() ? double(quantized.mins.at(group)) : 0;
    if (q.table != CodeTable::None) {  // a card adds 128 to the entries
      const int entry = entries_of(q.table)[size_t(code)];
      return {scale * entry, std::abs(scale) * (entry + 256)};
    }
    const int zero = q.asymmetric() ? 0 : q.zero_code();
    return {scale * (code - zero) + min, std::abs(scale) * (code + zero) + std::abs(min)};
  }

  Format format;
  HostTensor floats, blocks;
  HostQuantizedMatrix quantized;
  Matrix matrix;
};

}  // namespace minfer::test
