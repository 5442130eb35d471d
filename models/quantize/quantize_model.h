#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "loaders/model_writer.h"
#include "models/quantize/plan.h"

namespace minfer {

// How one tensor of the plan was stored.
struct QuantizedTensorReport {
  std::string name;
  DType source_type = DType::F32;
  TensorEntry output;
  int64_t bytes_before = 0, bytes_after = 0;
  bool fallback = false;
  QuantizationError error;  // zero where the values are the source's
};

// The report before the run: it has the sizes, but no errors.
QuantizedTensorReport planned_report(const PlannedTensor& tensor);

// Gives the inputs that each matrix had on a calibration text. It is called in the plan's order,
// and gets each quantized block of rows, because later matrices see the outputs of quantized ones.
class Calibration {
 public:
  virtual ~Calibration() = default;

  // The inputs for rows [begin, begin + rows.shape[0]) of a tensor with groups of `group` columns;
  // nothing for a tensor that is to be quantized without GPTQ. They are valid until the next call.
  virtual std::optional<GptqInputs> inputs(const std::string& name, int64_t group, int64_t begin,
                                           const Tensor& rows) = 0;
  // Gets the rows from `begin` on as quantized.
  virtual void take_rows(const std::string& name, int64_t begin, const QuantizedMatrix& rows) = 0;
};

// Reads the source in blocks of rows, one block ahead, and passes each block, as quantized, to the
// writer. The memory that it takes does not grow with the model. What is written depends only on
// the source, the plan, the method and the calibration. It does not call writer.finish(). Throws
// System, and Input for values that cannot be stored.
//   progress     called with the bytes of the source done and in all
//   calibration  may be null
std::vector<QuantizedTensorReport> quantize_model(
    const TensorSource& source, const QuantizePlan& plan, QuantizeMethod method, int n_threads,
    ModelWriter& writer, const std::function<void(int64_t, int64_t)>& progress,
    Calibration* calibration = nullptr);

}  // namespace minfer
