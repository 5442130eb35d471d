#include "tools/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/json_text.h"
#include "tools/machine_report.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

// The figures of a phase: clocks of one time, by block; and of a step, what that comes to.
struct PhaseFigures {
  PhaseClocks mean, largest;
  double seconds = 0, share = 0;   // of a step
  int64_t weight_bytes = 0;        // of a step
  std::optional<double> gb_per_s;  // over those seconds; none for a phase without weights
};

struct StepFigures {
  double clocks = 0, kernel_s = 0;  // of a step: the mean over the blocks
  std::vector<PhaseFigures> phases;
  int64_t weight_bytes = 0;
  double clocks_per_second() const { return per_second(clocks, kernel_s); }
};

constexpr double PhaseClocks::*kParts[] = {&PhaseClocks::input, &PhaseClocks::multiply,
                                           &PhaseClocks::ring, &PhaseClocks::publish};

PhaseFigures clocks_of(const PhaseProfile& phase, int64_t n_steps) {
  PhaseFigures figures;
  const double n_times = double(phase.n_per_step * n_steps);
  for (const PhaseClocks& block : phase.blocks) {
    for (const auto part : kParts) {
      const double clocks = per_second(block.*part, n_times);
      figures.mean.*part += clocks / double(phase.blocks.size());
      figures.largest.*part = std::max(figures.largest.*part, clocks);
    }
  }
  return figures;
}

StepFigures figures_of(const StepMeasurement& measured) {
  const StepProfile& profile = measured.profile;
  StepFigures step;
  step.kernel_s = per_second(mean(profile.seconds), double(profile.n_steps));
  for (const PhaseProfile& phase : profile.phases) {
    step.phases.push_back(clocks_of(phase, profile.n_steps));
    step.clocks += step.phases.back().mean.sum() * double(phase.n_per_step);
  }
  for (size_t i = 0; i < step.phases.size(); ++i) {
    const PhaseProfile& phase = profile.phases[i];
    PhaseFigures& figures = step.phases[i];
    figures.seconds =
        per_second(figures.mean.sum() * double(phase.n_per_step), step.clocks_per_second());
    figures.share = per_second(figures.seconds, measured.profiled_step_s);
    figures.weight_bytes = phase.weight_bytes * phase.n_per_step;
    step.weight_bytes += figures.weight_bytes;
    if (phase.weight_bytes > 0) {
      figures.gb_per_s = per_second(double(figures.weight_bytes), figures.seconds) / 1e9;
    }
  }
  return step;
}

Json clocks_object(const PhaseClocks& clocks) {
  return {{"input", clocks.input},
          {"multiply", clocks.multiply},
          {"ring", clocks.ring},
          {"publish", clocks.publish}};
}

}  // namespace

std::string step_json(const StepMeasurement& measured) {
  const StepFigures step = figures_of(measured);
  Json phases = Json::array();
  for (size_t i = 0; i < step.phases.size(); ++i) {
    const PhaseProfile& phase = measured.profile.phases[i];
    const PhaseFigures& figures = step.phases[i];
    phases.push_back({{"phase", phase.name},
                      {"per_step", phase.n_per_step},
                      {"clocks", clocks_object(figures.mean)},
                      {"largest_clocks", clocks_object(figures.largest)},
                      {"step_s", figures.seconds},
                      {"share", figures.share},
                      {"weight_bytes", figures.weight_bytes},
                      {"gb_per_s", figures.gb_per_s ? Json(*figures.gb_per_s) : Json()}});
  }
  return pretty(Json::object({{"machine", machine_json()},
                              {"model", measured.model},
                              {"backend", measured.backend},
                              {"type_k", measured.kv_type},
                              {"type_v", measured.kv_type},
                              {"n_depth", measured.n_depth},
                              {"n_gen", measured.n_gen},
                              {"steps", measured.profile.n_steps},
                              {"step_s", measured.step_s},
                              {"profiled_step_s", measured.profiled_step_s},
                              {"kernel_s", step.kernel_s},
                              {"kernel_clocks", step.clocks},
                              {"clocks_per_s", step.clocks_per_second()},
                              {"blocks", std::ssize(measured.profile.seconds)},
                              {"weight_bytes", step.weight_bytes},
                              {"phases", phases}}));
}

std::string step_text(const StepMeasurement& measured) {
  const StepFigures step = figures_of(measured);
  const double outside_s = std::max(0.0, measured.profiled_step_s - step.kernel_s);
  const double slower = per_second(measured.profiled_step_s, measured.step_s) - 1;
  std::string text = fmt::format(
      "{}, {}: {:.1f} us a step at depth {}, {:.1f} us with the timers ({:+.1f} %)\n"
      "kernel: {:.1f} us, {:.0f} clocks at {:.3f} GHz on each of {} blocks\n\n",
      measured.model, measured.backend, measured.step_s * 1e6, measured.n_depth,
      measured.profiled_step_s * 1e6, slower * 100, step.kernel_s * 1e6, step.clocks,
      step.clocks_per_second() / 1e9, measured.profile.seconds.size());
  text +=
      "| phase | per step | input | multiply | ring | publish | most multiply | us a step | share |"
      " MB a step | GB/s |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  const auto megabytes = [](int64_t n_bytes) {
    return fmt::format("{:.1f}", double(n_bytes) / 1e6);
  };
  for (size_t i = 0; i < step.phases.size(); ++i) {
    const PhaseProfile& phase = measured.profile.phases[i];
    const PhaseFigures& f = step.phases[i];
    text += fmt::format(
        "| {} | {} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.1f} | {:.1f} % | {} | {} |\n",
        phase.name, phase.n_per_step, f.mean.input, f.mean.multiply, f.mean.ring, f.mean.publish,
        f.largest.multiply, f.seconds * 1e6, f.share * 100,
        f.gb_per_s ? megabytes(f.weight_bytes) : "",
        f.gb_per_s ? fmt::format("{:.0f}", *f.gb_per_s) : "");
  }
  text += fmt::format("| outside the kernel | 1 | | | | | | {:.1f} | {:.1f} % | | |\n",
                      outside_s * 1e6, per_second(outside_s, measured.profiled_step_s) * 100);
  text += fmt::format("| all | | | | | | | {:.1f} | 100.0 % | {} | {:.0f} |\n",
                      measured.profiled_step_s * 1e6, megabytes(step.weight_bytes),
                      per_second(double(step.weight_bytes), measured.profiled_step_s) / 1e9);
  return text;
}

}  // namespace minfer
