#include "kernels/base/usable_cores.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "kernels/base/cgroup.h"

namespace minfer {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// "max 100000" or "150000 100000": quota and period in microseconds; version 1 has -1 for none.
double cores_of(const Cgroup& group) {
  double quota = 0, period = 0;
  if (group.version2) {
    std::ifstream(group.dir + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.dir + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group.dir + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

}  // namespace

int usable_cores(const std::string& root) {
  int n = int(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
  double quota = kNoQuota;
  for (const Cgroup& group : cgroups_of("cpu", root)) quota = std::min(quota, cores_of(group));
  // A part of a core is worth a thread.
  if (quota < n) n = int(std::ceil(quota));
  return std::max(n, 1);
}

}  // namespace minfer
