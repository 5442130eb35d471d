#include "tools/version.h"

#include "kernels/backend.h"
#include "kernels/base/error.h"

namespace minfer {
namespace {

std::string cpu_features() {
  std::string found;
#if defined(__x86_64__)
  const auto add = [&found](const char* name, bool has) {
    if (has) found += cat(found.empty() ? "" : " ", name);
  };
  add("avx", __builtin_cpu_supports("avx"));
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512vnni", __builtin_cpu_supports("avx512vnni"));
  add("avx512bf16", __builtin_cpu_supports("avx512bf16"));
#endif
  return found.empty() ? "none beyond the baseline" : found;
}

}  // namespace

std::string version() {
  return cat(MINFER_VERSION, MINFER_COMMIT[0] == '\0' ? "" : " (" MINFER_COMMIT ")");
}

std::string version_text() {
  return cat("minfer ", version(), "\ncompiler: ", MINFER_COMPILER,
             "\nbackends: cpu\ncpu features: ", cpu_features(),
             "\ncpu path: ", make_cpu_backend()->name(), "\n");
}

}  // namespace minfer
