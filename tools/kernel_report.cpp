#include "tools/kernel_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/json_text.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

// What a kernel's rate is held against, by name and per second; 0 where it is not known.
struct Limit {
  const char* name;
  double per_second;
};

Limit limit_of(const MachineLimits& limits, Bound bound) {
  const auto& cuda = limits.cuda;
  switch (bound) {
    case Bound::Read:
      return {"read", cuda ? cuda->read_bytes_per_second : limits.cpu.read_bytes_per_second};
    case Bound::Copy:
      return {"copy", cuda ? cuda->copy_bytes_per_second : limits.cpu.copy_bytes_per_second};
    case Bound::Flops:
      break;
  }
  if (!cuda) return {"fma", limits.cpu.fma_flops_per_second};
  double best = 0;
  for (const CudaLimits::Hgemm& hgemm : cuda->hgemm) best = std::max(best, hgemm.flops_per_second);
  return {"hgemm", best};
}

// One row of either form.
struct Figures {
  Limit limit;
  double us;
  std::string bound;
  std::optional<double> gb_per_s, tflops, flops_per_byte, limit_share, cublas_us, of_cublas;
};

// What takes most of the time: the memory or the arithmetic, where working at its limit would take
// half of it or more; else launches, waits, and steps that need the result of the one before.
std::string bound_of(const KernelTiming& t, const std::optional<double>& limit_share) {
  if (limit_share && *limit_share < 0.5) return "latency";
  return t.bound == Bound::Flops ? "arithmetic" : "memory";
}

Figures figures_of(const MachineLimits& limits, const KernelTiming& t) {
  Figures f{.limit = limit_of(limits, t.bound),
            .us = t.seconds * 1e6,
            .bound = {},
            .gb_per_s = {},
            .tflops = {},
            .flops_per_byte = {},
            .limit_share = {},
            .cublas_us = {},
            .of_cublas = {}};
  (t.bound == Bound::Flops ? f.tflops : f.gb_per_s) =
      t.rate() / (t.bound == Bound::Flops ? 1e12 : 1e9);
  if (t.work.bytes > 0) f.flops_per_byte = t.work.flops / t.work.bytes;
  if (f.limit.per_second > 0) f.limit_share = t.rate() / f.limit.per_second;
  f.bound = bound_of(t, f.limit_share);
  if (t.cublas_seconds) {
    f.cublas_us = *t.cublas_seconds * 1e6;
    f.of_cublas = *t.cublas_seconds / t.seconds;
  }
  return f;
}

Json number(const std::optional<double>& x) { return x ? Json(*x) : Json(); }

std::string cell(const std::optional<double>& x, const char* format) {
  return x ? fmt::format(fmt::runtime(format), *x) : std::string();
}

}  // namespace

std::string kernels_json(const MachineLimits& limits, const std::vector<KernelTiming>& timings) {
  Json rows = Json::array();
  for (const KernelTiming& t : timings) {
    const Figures f = figures_of(limits, t);
    rows.push_back({{"kernel", t.kernel},
                    {"shape", t.shape},
                    {"us", f.us},
                    {"gb_per_s", number(f.gb_per_s)},
                    {"tflops", number(f.tflops)},
                    {"flops_per_byte", number(f.flops_per_byte)},
                    {"bound", f.bound},
                    {"limit", f.limit.name},
                    {"limit_share", number(f.limit_share)},
                    {"cublas_us", number(f.cublas_us)},
                    {"of_cublas", number(f.of_cublas)}});
  }
  return pretty(Json::object(
      {{"machine", machine_json()}, {"limits", limits_object(limits)}, {"results", rows}}));
}

std::string kernels_text(const MachineLimits& limits, const std::vector<KernelTiming>& timings) {
  std::string text =
      "| kernel | shape | us | GB/s | TFLOP/s | FLOP/byte | bound by | of limit | of cuBLAS |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |\n";
  for (const KernelTiming& t : timings) {
    const Figures f = figures_of(limits, t);
    const std::string share =
        f.limit_share ? fmt::format("{:.0f} % {}", *f.limit_share * 100, f.limit.name) : "";
    text +=
        fmt::format("| {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} |\n", t.kernel, t.shape, f.us,
                    cell(f.gb_per_s, "{:.1f}"), cell(f.tflops, "{:.3g}"),
                    cell(f.flops_per_byte, "{:.3g}"), f.bound, share, cell(f.of_cublas, "{:.3f}"));
  }
  return text;
}

}  // namespace minfer
