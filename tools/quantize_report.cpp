#include "tools/quantize_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/bytes_text.h"
#include "kernels/base/utf8.h"
#include "tools/json_text.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWorst = 5;

struct Totals {
  int64_t bytes_before = 0, bytes_after = 0, n_weights = 0, n_fallbacks = 0;
  QuantizationError error;
};

Totals totals_of(const QuantizeReport& report) {
  Totals totals;
  for (const QuantizedTensorReport& tensor : report.tensors) {
    totals.bytes_before += tensor.bytes_before;
    totals.bytes_after += tensor.bytes_after;
    totals.n_weights += tensor.output.shape.n_elements();
    totals.n_fallbacks += tensor.fallback ? 1 : 0;
    totals.error.add(tensor.error);
  }
  return totals;
}

double bits_per_weight(int64_t bytes, int64_t n_weights) {
  return n_weights == 0 ? 0 : 8.0 * double(bytes) / double(n_weights);
}

// "int4 g64", "int8 row", "F16".
std::string type_of(const QuantizedTensorReport& tensor) {
  const TensorEntry& output = tensor.output;
  if (!output.quant) return std::string(info(output.dtype).name);
  const bool is_row = output.quant->group == output.shape[1];
  return cat(output.dtype == DType::U4 ? "int4 " : "int8 ",
             is_row ? std::string("row") : cat("g", output.quant->group),
             output.quant->asymmetric ? " asymmetric" : "");
}

// Of those that differ from their source, the ones with the largest relative error first.
std::vector<const QuantizedTensorReport*> worst_of(const QuantizeReport& report) {
  std::vector<const QuantizedTensorReport*> tensors;
  for (const QuantizedTensorReport& tensor : report.tensors) {
    if (tensor.error.squared_error > 0) tensors.push_back(&tensor);
  }
  std::ranges::stable_sort(tensors, std::ranges::greater{},
                           [](const auto* tensor) { return tensor->error.relative_rms(); });
  if (tensors.size() > kWorst) tensors.resize(kWorst);
  return tensors;
}

Json tensor_json(const QuantizedTensorReport& tensor, bool with_errors) {
  Json json = {
      {"name", tensor.name},
      {"type_before", info(tensor.source_type).name},
      {"type", type_of(tensor)},
      {"n_weights", tensor.output.shape.n_elements()},
      {"bytes_before", tensor.bytes_before},
      {"bytes_after", tensor.bytes_after},
      {"bits_per_weight", bits_per_weight(tensor.bytes_after, tensor.output.shape.n_elements())},
      {"fallback", tensor.fallback}};
  if (with_errors) {
    json["relative_rms"] = tensor.error.relative_rms();
    json["largest_error"] = tensor.error.largest_error;
  }
  return json;
}

}  // namespace

namespace {

std::string tensor_rows(const QuantizeReport& report) {
  const bool done = report.run.has_value();
  size_t width = 6;
  for (const auto& tensor : report.tensors) width = std::max(width, tensor.name.size());
  std::string text = fmt::format("{:<{}}  {:<20} {:>12} {:>12} {:>6}{}\n", "tensor", width, "type",
                                 "bytes before", "bytes after", "bits", done ? "  error" : "");
  for (const QuantizedTensorReport& tensor : report.tensors) {
    text += fmt::format("{:<{}}  {:<20} {:>12} {:>12} {:>6.2f}", tensor.name, width,
                        cat(info(tensor.source_type).name, " -> ", type_of(tensor)),
                        tensor.bytes_before, tensor.bytes_after,
                        bits_per_weight(tensor.bytes_after, tensor.output.shape.n_elements()));
    if (done) text += fmt::format("  {:.3f} %", 100 * tensor.error.relative_rms());
    text += tensor.fallback ? "  fallback\n" : "\n";
  }
  return text + "\n";
}

}  // namespace

std::string to_text(const QuantizeReport& report, bool with_tensors) {
  const bool done = report.run.has_value();
  const Totals totals = totals_of(report);
  std::string text = with_tensors ? tensor_rows(report) : "";
  text += fmt::format("scheme       {}\n", report.scheme);
  text += fmt::format("size         {} -> {} ({:.1f} % smaller), {:.2f} bits per weight\n",
                      bytes_text(totals.bytes_before), bytes_text(totals.bytes_after),
                      100 * (1 - double(totals.bytes_after) / double(totals.bytes_before)),
                      bits_per_weight(totals.bytes_after, totals.n_weights));
  text += fmt::format("fallbacks    {}\n", totals.n_fallbacks);
  if (!done) return text;
  text += fmt::format("error        {:.3f} % relative RMS\n", 100 * totals.error.relative_rms());
  for (const auto* tensor : worst_of(report)) {
    text += fmt::format("  worst      {:.3f} %  {}\n", 100 * tensor->error.relative_rms(),
                        tensor->name);
  }
  text += fmt::format("time         {:.1f} s, {:.0f} MB/s\noutput       {}\n", report.run->seconds,
                      double(totals.bytes_before) / 1e6 / report.run->seconds,
                      shortened(report.run->output, 500));
  return text;
}

std::string to_json(const QuantizeReport& report, bool with_run) {
  const Totals totals = totals_of(report);
  const bool with_errors = !with_run || report.run;
  Json tensors = Json::array(), worst = Json::array();
  for (const auto& tensor : report.tensors) tensors.push_back(tensor_json(tensor, with_errors));
  for (const auto* tensor : worst_of(report)) {
    worst.push_back({{"name", tensor->name}, {"relative_rms", tensor->error.relative_rms()}});
  }
  Json json = {{"source", report.source},
               {"source_format", report.source_format},
               {"scheme", report.scheme},
               {"calibration", report.calibration},
               {"bytes_before", totals.bytes_before},
               {"bytes_after", totals.bytes_after},
               {"n_weights", totals.n_weights},
               {"bits_per_weight", bits_per_weight(totals.bytes_after, totals.n_weights)},
               {"fallbacks", totals.n_fallbacks}};
  if (with_errors) {
    json["relative_rms"] = totals.error.relative_rms();
    json["worst"] = worst;
  }
  json["tensors"] = tensors;
  if (with_run) json["dry_run"] = !report.run;
  if (with_run && report.run) {
    // A name that is not UTF-8 has no other form in JSON than that of messages.
    const std::string& output = report.run->output;
    json["output"] = is_utf8(output) ? output : shortened(output, output.size());
    json["seconds"] = report.run->seconds;
    json["mb_per_s"] = double(totals.bytes_before) / 1e6 / report.run->seconds;
  }
  return pretty(json);
}

}  // namespace minfer
