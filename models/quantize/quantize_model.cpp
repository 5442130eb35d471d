#include "models/quantize/quantize_model.h"

#include <algorithm>
#include <future>
#include <utility>

#include "kernels/base/quant_codec.h"
#include "models/source_error.h"
#include "models/weight_layout.h"

namespace minfer {
namespace {

// Bytes of the source that are worked on at a time: three such blocks are in memory, one of them
// quantized.
constexpr int64_t kBlockBytes = 64 << 20;

// Some rows of a tensor of the plan.
struct Block {
  size_t tensor = 0;
  int64_t begin = 0, n_rows = 0;
};

// Whole heads where rows change places within them, and the multiple of 8 that writers ask for.
int64_t block_rows(const PlannedTensor& tensor) {
  const Shape& shape = tensor.output.shape;
  if (shape.rank < 2) return shape[0];
  const int64_t step = 8 * (tensor.rope_heads == 0 ? 1 : shape[0] / tensor.rope_heads);
  const int64_t row_bytes = bytes_of(tensor.source_type, shape[1]);
  return std::max<int64_t>(1, kBlockBytes / (row_bytes * step)) * step;
}

std::vector<Block> blocks_of(const QuantizePlan& plan) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const int64_t n_rows = plan.tensors[i].output.shape[0], at_once = block_rows(plan.tensors[i]);
    for (int64_t begin = 0; begin < n_rows; begin += at_once) {
      blocks.push_back({i, begin, std::min(at_once, n_rows - begin)});
    }
  }
  return blocks;
}

HostTensor in_half_split_order(HostTensor rows, const PlannedTensor& tensor) {
  if (tensor.rope_heads == 0) return rows;
  const int64_t head_dim = tensor.output.shape[0] / tensor.rope_heads;
  return rope_pairs_to_halves(rows, rows.view().shape[0] / head_dim, tensor.rotary_dim);
}

HostTensor with_offset(HostTensor rows, const PlannedTensor& tensor) {
  if (tensor.offset == 0) return rows;
  HostTensor sums = to_f32_tensor(rows);
  for (int64_t i = 0, n = rows.view().n_elements(); i < n; ++i)
    sums.as<float>()[i] += tensor.offset;
  return sums;
}

// x in another type of elements or blocks; what is finite stays finite.
HostTensor converted(const Tensor& x, DType dtype) {
  HostTensor out(dtype, x.shape);
  const HostTensor values = to_f32_tensor(x);
  encode_row(out.view().data, values.as<float>(), dtype, x.n_elements());
  const int64_t index = first_non_finite(out);
  MINFER_REQUIRE(Input, index < 0, "element ", index, ": ", values.at(std::max<int64_t>(index, 0)),
                 " cannot be stored as ", dtype);
  return out;
}

QuantizationError conversion_error(const Tensor& x, const Tensor& stored) {
  QuantizationError error;
  const HostTensor values = to_f32_tensor(x), restored = to_f32_tensor(stored);
  for (int64_t i = 0, n = x.n_elements(); i < n; ++i) {
    error.add_weight(double{values.at(i)}, double{restored.at(i)});
  }
  return error;
}

// Writes what the rows become and says how far that is from them.
QuantizationError write_block(const PlannedTensor& tensor, int64_t begin, const Tensor& rows,
                              QuantizeMethod method, int n_threads, ModelWriter& writer,
                              Calibration* calibration) {
  const TensorEntry& output = tensor.output;
  if (output.quant) {
    const QuantizeFormat format = {.bits = output.dtype == DType::U4 ? 4 : 8,
                                   .group = output.quant->group,
                                   .asymmetric = output.quant->asymmetric};
    std::optional<GptqInputs> gptq;
    if (calibration != nullptr) {
      gptq = calibration->inputs(output.name, output.quant->group, begin, rows);
    }
    const HostQuantizedMatrix matrix =
        quantize_matrix(rows, format, method, n_threads, gptq ? &*gptq : nullptr);
    if (calibration != nullptr) calibration->take_rows(output.name, begin, matrix.view());
    writer.write_rows(output, begin, matrix.view());
    return quantization_error(rows, matrix.view(), n_threads);
  }
  const int64_t index = first_non_finite(rows);
  MINFER_REQUIRE(Input, index < 0, "element ", index, " is not a finite number");
  if (rows.dtype == output.dtype) {
    writer.write_rows(output, begin, rows);
    return {};
  }
  const HostTensor stored = converted(rows, output.dtype);
  writer.write_rows(output, begin, stored);
  return conversion_error(rows, stored);
}

}  // namespace

QuantizedTensorReport planned_report(const PlannedTensor& tensor) {
  return {tensor.output.name,
          tensor.source_type,
          tensor.output,
          tensor.source_bytes,
          narrow<int64_t>(tensor.output.file_bytes),
          tensor.fallback,
          {}};
}

std::vector<QuantizedTensorReport> quantize_model(
    const TensorSource& source, const QuantizePlan& plan, QuantizeMethod method, int n_threads,
    ModelWriter& writer, const std::function<void(int64_t, int64_t)>& progress,
    Calibration* calibration) {
  std::vector<QuantizedTensorReport> reports;
  int64_t total = 0, done = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    reports.push_back(planned_report(tensor));
    total += tensor.source_bytes;
  }
  const std::vector<Block> blocks = blocks_of(plan);
  const auto start_reading = [&](const Block& block) {
    // Deferred where the system starts no thread.
    return std::async(std::launch::async | std::launch::deferred, [&source, &plan, block] {
      const PlannedTensor& tensor = plan.tensors[block.tensor];
      return source.read_rows(*tensor.source, tensor.source_begin + block.begin, block.n_rows);
    });
  };
  std::future<HostTensor> next = start_reading(blocks.front());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    const PlannedTensor& tensor = plan.tensors[block.tensor];
    HostTensor rows = next.get();
    if (i + 1 < blocks.size()) next = start_reading(blocks[i + 1]);
    rows = with_offset(in_half_split_order(std::move(rows), tensor), tensor);
    try {
      reports[block.tensor].error.add(
          write_block(tensor, block.begin, rows, method, n_threads, writer, calibration));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Input) throw;
      const std::string rows_before = block.begin == 0 ? "" : cat(", from row ", block.begin);
      throw in_source(source, e.in(cat("tensor ", shortened(tensor.source->name), rows_before)));
    }
    done += rows.view().n_bytes();
    progress(done, total);
  }
  source.check_unchanged();
  return reports;
}

}  // namespace minfer
