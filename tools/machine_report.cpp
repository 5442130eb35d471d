#include "tools/machine_report.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/json_text.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// {"4096": ..., "8192": ...}, or null.
Json hgemm_json(const CudaLimits& cuda) {
  if (cuda.hgemm.empty()) return nullptr;
  Json object = Json::object();
  for (const auto& [size, rate] : cuda.hgemm) object[std::to_string(size)] = rate;
  return object;
}

}  // namespace

Json limits_object(const MachineLimits& limits) {
  Json object = {{"n_threads", limits.cpu.n_threads},
                 {"read_bytes_per_s", limits.cpu.read_bytes_per_second},
                 {"copy_bytes_per_s", limits.cpu.copy_bytes_per_second},
                 {"fma_flops_per_s", limits.cpu.fma_flops_per_second},
                 {"barrier_s", limits.cpu.barrier_seconds}};
  if (limits.cuda) {
    object["cuda"] = {{"card", limits.cuda->card},
                      {"read_bytes_per_s", limits.cuda->read_bytes_per_second},
                      {"copy_bytes_per_s", limits.cuda->copy_bytes_per_second},
                      {"barrier_s", limits.cuda->barrier_seconds},
                      {"launch_s", limits.cuda->launch_seconds},
                      {"dependent_launch_s", limits.cuda->dependent_launch_seconds},
                      {"hgemm_flops_per_s", hgemm_json(*limits.cuda)}};
  }
  return object;
}

Json machine_json() {
  utsname system{};
  ::uname(&system);
  return {{"cpu", processor_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"architecture", system.machine},
          {"kernel", std::string(system.sysname) + " " + system.release}};
}

std::string limits_json(const MachineLimits& limits) {
  return pretty(Json::object({{"machine", machine_json()}, {"limits", limits_object(limits)}}));
}

std::string limits_text(const MachineLimits& limits) {
  const CpuLimits& cpu = limits.cpu;
  std::string text = fmt::format(
      "threads        {}\nread           {:.1f} GB/s\ncopy           {:.1f} GB/s\n"
      "f32 fma        {:.1f} GFLOP/s\nbarrier        {:.2f} us\n",
      cpu.n_threads, cpu.read_bytes_per_second / 1e9, cpu.copy_bytes_per_second / 1e9,
      cpu.fma_flops_per_second / 1e9, cpu.barrier_seconds * 1e6);
  if (!limits.cuda) return text;
  const CudaLimits& cuda = *limits.cuda;
  text += fmt::format(
      "card           {}\nread           {:.0f} GB/s\ncopy           {:.0f} GB/s\n"
      "barrier        {:.2f} us\nlaunch         {:.2f} us in a graph, {:.2f} us "
      "dependent\n",
      cuda.card, cuda.read_bytes_per_second / 1e9, cuda.copy_bytes_per_second / 1e9,
      cuda.barrier_seconds * 1e6, cuda.launch_seconds * 1e6, cuda.dependent_launch_seconds * 1e6);
  for (const auto& [size, rate] : cuda.hgemm) {
    text += fmt::format("hgemm {:<8} {:.0f} TFLOP/s\n", fmt::format("{}^3", size), rate / 1e12);
  }
  if (cuda.hgemm.empty()) text += fmt::format("hgemm          unknown: {}\n", cuda.no_cublas);
  return text;
}

}  // namespace minfer
