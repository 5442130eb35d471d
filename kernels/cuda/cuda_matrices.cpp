// Weights on a card: matrices of halves or packed codes, vectors and token embeddings.

#include "kernels/base/usable_cores.h"
#include "kernels/cuda/cuda_backend.h"

namespace minfer::cuda {
namespace {

HostQuantizedMatrix quantized(const Tensor& host) {
  return to_quantized_matrix(host, usable_cores());
}

}  // namespace

// Copies host, of a float type, to the card as the compute type, in `memory`.
Tensor CudaBackend::as_compute_type(const Tensor& host, DeviceTensor& memory) {
  memory = allocate(type_, host.shape);
  if (host.dtype == type_) {
    uploader_.copy(memory.view().data, host.data, host.n_bytes());
  } else {
    const Tensor staged = scratch(staging_, host.dtype, host.shape);
    uploader_.copy(staged.data, host.data, host.n_bytes());
    convert(stream_.get(), memory, staged);
  }
  return memory;
}

DeviceTensor CudaBackend::upload_vector(const Tensor& host) {
  DeviceTensor vector;
  as_compute_type(host, vector);
  return vector;
}

Matrix CudaBackend::pack_matrix(const Tensor& host) {
  MINFER_CHECK(host.shape.rank == 2 && host.n_elements() > 0, "pack_matrix: ", host.shape);
  if (!is_float(host.dtype)) {
    return group_format(host.dtype).products ? pack_products(host)
                                             : pack_matrix(quantized(host).view());
  }
  Matrix matrix;
  matrix.out_dim = host.shape[0];
  matrix.in_dim = host.shape[1];
  matrix.dtype = type_;
  as_compute_type(host, matrix.storage);
  matrix.n_bytes = matrix.storage.view().n_bytes();
  return matrix;
}

Matrix CudaBackend::pack_matrix(const QuantizedMatrix& host) {
  if (!cuda_keeps_groups(host.in_dim(), host.group)) {
    HostTensor values(DType::F32, {host.out_dim(), host.in_dim()});
    for (int64_t row = 0; row < host.out_dim(); ++row) {
      dequantize_row(values.as<float>() + row * host.in_dim(), host, row);
    }
    return pack_matrix(values.view());
  }
  Matrix matrix = allocate_codes(host.codes.dtype, host.scales.dtype, host.asymmetric(),
                                 host.out_dim(), host.in_dim(), host.group, host.table);
  const auto part_bytes = [](const Tensor& t) { return t ? align_up(t.n_bytes(), 256) : 0; };
  const Tensor staged =
      scratch(staging_, DType::U8,
              {part_bytes(host.codes) + part_bytes(host.scales) + part_bytes(host.mins)});
  char* to = static_cast<char*>(staged.data);
  const auto send = [&](const Tensor& part) {
    if (!part) return Tensor();
    const Tensor there{to, part.dtype, part.shape};
    uploader_.copy(to, part.data, part.n_bytes());
    to += part_bytes(part);
    return there;
  };
  const QuantizedMatrix on_device{send(host.codes), send(host.scales), send(host.mins), host.group,
                                  host.table};
  pack_codes(stream_.get(), matrix, on_device, 0);
  return matrix;
}

// GGUF's blocks whose scales are products stay so: Q4_K takes 4.6 bits in place of 6.
Matrix CudaBackend::pack_products(const Tensor& host) {
  const HostQuantizedMatrix q = quantized(host);
  Matrix matrix = allocate_products(host.shape[0], host.shape[1], group_format(host.dtype));
  const Tensor codes = q.codes.view();
  const Tensor staged = scratch(staging_, codes.dtype, codes.shape);
  uploader_.copy(staged.data, codes.data, codes.n_bytes());
  pack_product_codes(stream_.get(), matrix, staged);
  const std::vector<uint8_t> records = packed_records(host);
  const Tensor to = matrix.scales;
  MINFER_CHECK(to.n_bytes() == std::ssize(records), "records of ", records.size(), " bytes");
  uploader_.copy(to.data, records.data(), std::ssize(records));
  return matrix;
}

// Products stay packed: row-major codes would take four or eight bits.
Matrix CudaBackend::pack_table(const Tensor& host) {
  if (is_float(host.dtype) || group_format(host.dtype).products) return pack_matrix(host);
  return pack_table(quantized(host).view());
}

// A row of packed tiles lies in pieces of 64 bytes, each beside a piece of another row. In this
// layout a row is contiguous, so that a lookup reads that row only.
Matrix CudaBackend::pack_table(const QuantizedMatrix& host) {
  if (!cuda_keeps_groups(host.in_dim(), host.group)) return pack_matrix(host);
  Matrix table;
  table.out_dim = host.out_dim();
  table.in_dim = host.in_dim();
  table.group = host.group;
  table.dtype = host.codes.dtype;
  table.table = host.table;
  table.by_rows = true;
  table.code_bits = host.bits();
  table.storage = upload(host.codes);
  table.scales = upload(host.scales);
  if (host.mins) table.mins = upload(host.mins);
  table.n_bytes = table.storage.view().n_bytes() + table.scales.view().n_bytes() +
                  (table.mins ? table.mins.view().n_bytes() : 0);
  return table;
}

int64_t CudaBackend::packed_bytes(const StoredMatrix& w) const {
  const CudaMatrixBytes bytes = cuda_packed_bytes(w);
  return checked_add(allocated_bytes(bytes.codes),
                     checked_add(allocated_bytes(bytes.scales), allocated_bytes(bytes.mins)));
}

// The host matrix is staged on the card before it is packed.
int64_t CudaBackend::packing_workspace_bytes(const StoredMatrix& w) const {
  const int64_t n = checked_mul(w.out_dim, w.in_dim);
  if (!w.groups) return w.dtype == type_ ? 0 : bytes_of(w.dtype, n);
  const GroupFormat format = cuda_groups(w);
  if (!cuda_keeps_groups(w.in_dim, format.group)) return bytes_of(DType::F32, n);
  if (format.products) return n / 8 * widened(format).bits + 256;
  const int64_t scale_bytes = bytes_of(format.scales, n / format.group);
  const int64_t min_bytes = format.has_mins ? bytes_of(DType::F32, n / format.group) : 0;
  return n / 8 * format.bits + scale_bytes + min_bytes + 3 * 256;
}

}  // namespace minfer::cuda
