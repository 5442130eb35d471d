#include "kernels/cpu/isa.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "kernels/base/error.h"

namespace minfer::cpu {
namespace {

struct Isa {
  std::string_view name;
  bool supported;
  const CpuKernels& (*kernels)();
};

#if defined(__x86_64__)
const CpuKernels& avx512_or_vnni_kernels() {
  static const CpuKernels kernels = avx512_kernels(
      __builtin_cpu_supports("avx512vnni") ? avx512_vnni_matmuls() : avx2_kernels().bytes);
  return kernels;
}
#endif

// The best instruction set is last.
auto all_isas() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return std::array{Isa{"base", true, reference_kernels}, Isa{"avx2", avx2, avx2_kernels},
                    Isa{"avx512", avx512, avx512_or_vnni_kernels}};
#else
  return std::array{Isa{"base", true, reference_kernels}};
#endif
}

}  // namespace

const CpuKernels& choose_kernels(const std::string& isa) {
  std::string wanted = isa, from = "CPU instruction set";
  const char* set = std::getenv("MINFER_CPU_ISA");
  if (wanted.empty() && set != nullptr) {
    wanted = set;
    from = "MINFER_CPU_ISA";
  }
  const Isa* found = nullptr;
  std::string names;
  const auto isas = all_isas();
  for (const Isa& candidate : isas) {
    if (!candidate.supported) continue;
    names += cat(names.empty() ? "" : ", ", candidate.name);
    if (wanted.empty() || wanted == candidate.name) found = &candidate;
  }
  MINFER_REQUIRE(Usage, found != nullptr, from, " ", shortened(wanted), " is not one of ", names,
                 " that this machine has");
  return found->kernels();
}

}  // namespace minfer::cpu
