#include "kernels/base/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "kernels/base/cgroup.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

// A tree of files that stands for the root directory.
class FakeRoot {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return std::string(dir_.path()) + "/root"; }

 private:
  test::TempDir dir_;
};

int cores_by_affinity() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

constexpr const char* kVersion2 =
    "24 1 8:1 / / rw - ext4 /dev/sda rw\n"
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(UsableCores, IsTheAffinityMaskWithoutAQuota) {
  const FakeRoot empty;
  EXPECT_EQ(usable_cores(empty.root()), cores_by_affinity());
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(empty.root()), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(UsableCores, FollowsTheQuotaOfAnyGroupAbove) {
  if (cores_by_affinity() < 2) GTEST_SKIP() << "one core";
  FakeRoot fake;
  fake.write("/proc/self/mountinfo", kVersion2);
  fake.write("/proc/self/cgroup", "0::/work.slice/build.scope/leaf\n");
  const std::string group = "/sys/fs/cgroup/work.slice";
  fake.write(group + "/build.scope/leaf/cpu.max", "max 100000\n");
  fake.write(group + "/build.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(fake.root()), cores_by_affinity());
  fake.write(group + "/cpu.max", "60000 100000\n");
  EXPECT_EQ(usable_cores(fake.root()), 1);
  fake.write(group + "/cpu.max", "110000 100000\n");
  EXPECT_EQ(usable_cores(fake.root()), 2);
  fake.write(group + "/build.scope/leaf/cpu.max", "20000 50000\n");
  EXPECT_EQ(usable_cores(fake.root()), 1);
}

TEST(UsableCores, FollowsVersionOne) {
  FakeRoot fake;
  fake.write("/proc/self/mountinfo",
             "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "32 24 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
  fake.write("/proc/self/cgroup", "5:cpuset:/jobs/7\n4:cpu,cpuacct:/jobs/7\n");
  const std::string group = "/sys/fs/cgroup/cpu,cpuacct/jobs";
  fake.write(group + "/7/cpu.cfs_quota_us", "-1\n");
  fake.write(group + "/7/cpu.cfs_period_us", "100000\n");
  fake.write("/sys/fs/cgroup/cpuset/jobs/7/cpu.cfs_quota_us", "1000\n");
  fake.write("/sys/fs/cgroup/cpuset/jobs/7/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_cores(fake.root()), cores_by_affinity());
  fake.write(group + "/cpu.cfs_quota_us", "100000\n");
  fake.write(group + "/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_cores(fake.root()), 1);
}

std::vector<std::string> dirs_of(const FakeRoot& fake) {
  std::vector<std::string> dirs;
  for (const Cgroup& group : cgroups_of("cpu", fake.root())) {
    dirs.push_back(group.dir.substr(fake.root().size()));
  }
  return dirs;
}

// The host's name of the group, of which a container has the end mounted or nothing.
TEST(Cgroup, IsFoundInAContainer) {
  FakeRoot fake;
  fake.write("/proc/self/mountinfo",
             "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  fake.write("/proc/self/cgroup", "0::/docker/abc/inner\n");
  EXPECT_EQ(dirs_of(fake), (std::vector<std::string>{"/sys/fs/cgroup/inner", "/sys/fs/cgroup"}));
  fake.write("/proc/self/cgroup", "0::/docker/abcdef\n");
  EXPECT_EQ(dirs_of(fake), std::vector<std::string>{"/sys/fs/cgroup"});
  fake.write("/proc/self/mountinfo", kVersion2);
  fake.write("/proc/self/cgroup", "0::/../other\n");
  EXPECT_EQ(dirs_of(fake), std::vector<std::string>{"/sys/fs/cgroup"});
}

TEST(Cgroup, IsFoundBelowAnUnusualMount) {
  FakeRoot fake;
  fake.write("/proc/self/mountinfo", "30 24 0:26 / /my\\040groups rw - cgroup2 none rw\n");
  fake.write("/proc/self/cgroup", "0::/a:b\n");
  EXPECT_EQ(dirs_of(fake), (std::vector<std::string>{"/my groups/a:b", "/my groups"}));
}

TEST(Cgroup, BrokenLinesArePassedOver) {
  FakeRoot fake;
  fake.write("/proc/self/mountinfo", "\n30 - \n - cgroup2\nx y z / - cgroup2 c rw\n\\\n");
  fake.write("/proc/self/cgroup", "\nabc\n0:\n0::\n:::\n");
  EXPECT_TRUE(dirs_of(fake).empty());
}

}  // namespace
}  // namespace minfer
