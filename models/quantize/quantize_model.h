#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "loaders/model_writer.h"
#include "models/quantize/plan.h"

namespace minfer {

// What became of each tensor of the plan, in its order.
struct QuantizedTensorReport {
  std::string name;
  DType source_type = DType::F32;
  TensorEntry output;
  int64_t bytes_before = 0, bytes_after = 0;
  bool fallback = false;
  QuantizationError error;  // zero where the values are the source's
};

// Before the run: sizes, no errors.
QuantizedTensorReport planned_report(const PlannedTensor& tensor);

// What the inputs of each matrix were on a calibration text. Asked in the order of the plan, and
// told what each block of rows became, because later matrices see the outputs of quantized ones.
class Calibration {
 public:
  virtual ~Calibration() = default;

  // For rows [begin, begin + rows.shape[0]) of a tensor that is to have groups of `group` columns.
  // None for a tensor that is to be quantized without; valid until the next call.
  virtual std::optional<GptqInputs> inputs(const std::string& name, int64_t group, int64_t begin,
                                           const Tensor& rows) = 0;
  // What these rows became.
  virtual void take_rows(const std::string& name, int64_t begin, const QuantizedMatrix& rows) = 0;
};

// Reads the source block of rows by block, one ahead, and hands what each becomes to the writer;
// the memory that it takes does not grow with the model. The bytes written depend on the source,
// the plan and the method alone. The writer is not finished. Throws Input for values that cannot be
// stored, System.
//   progress     bytes of the source done and in all
//   calibration  may be null
std::vector<QuantizedTensorReport> quantize_model(
    const TensorSource& source, const QuantizePlan& plan, QuantizeMethod method, int n_threads,
    ModelWriter& writer, const std::function<void(int64_t, int64_t)>& progress,
    Calibration* calibration = nullptr);

}  // namespace minfer
