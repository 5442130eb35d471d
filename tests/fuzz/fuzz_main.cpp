#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/allocation_meter.h"

// Runs the fuzz targets that a program defines:
//
//   fuzz_X --list                       their names
//   fuzz_X TARGET --runs N --seed S     N inputs, the same ones for the same seed
//   fuzz_X TARGET FILE...               these inputs
//
// An input that ends the process, throws what it may not, or takes too much is left in a file
// fuzz-TARGET-SEED-RUN. The last line tells runs, reports, and the worst time and memory.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());

namespace minfer::test {
namespace {

constexpr size_t kFreeBytes = 16 << 20;

struct Run {
  const FuzzTarget* target = nullptr;
  std::string input, name;
};
Run current;

void keep_input() {
  std::ofstream(current.name, std::ios::binary) << current.input;
  std::fprintf(stderr, "fuzz: the input is in %s\n", current.name.c_str());
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

struct Tally {
  uint64_t runs = 0, accepted = 0, reports = 0;
  double worst_s = 0;
  size_t worst_bytes = 0;

  void report(const std::string& what) {
    ++reports;
    std::fprintf(stderr, "fuzz: %s: %s\n", current.name.c_str(), what.c_str());
    keep_input();
  }

  void run() {
    const double start = cpu_seconds();
    const size_t held = held_bytes();
    reset_peak();
    try {
      current.target->run(current.input);
      ++accepted;
    } catch (const Error& e) {
      const bool is_one_line = std::string_view(e.what()).find('\n') == std::string_view::npos;
      if (e.kind() != ErrorKind::Input || !is_one_line)
        report(cat("error ", int(e.kind()), ": ", e.what()));
    } catch (const std::exception& e) {
      report(cat("exception: ", e.what()));
    }
    const double taken = cpu_seconds() - start;
    const size_t bytes = peak_bytes() - held;
    if (taken > current.target->max_seconds) report(cat(taken, " s"));
    if (bytes > 2 * (current.input.size() + current.target->other_bytes) + kFreeBytes)
      report(cat(bytes, " bytes of memory"));
    ++runs;
    worst_s = std::max(worst_s, taken);
    worst_bytes = std::max(worst_bytes, bytes);
  }
};

uint64_t number(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int fuzz(const FuzzTarget& target, int argc, char** argv) {
  current.target = &target;
  Tally tally;
  if (argc == 6 && std::string_view(argv[2]) == "--runs") {
    const uint64_t n = number(argv[3]), seed = number(argv[5]);
    for (uint64_t i = 0; i < n; ++i) {
      Random random(seed << 32 | i);
      current.name = cat("fuzz-", target.name, "-", seed, "-", i);
      current.input = target.make(random);
      tally.run();
    }
  } else {
    for (int i = 2; i < argc; ++i) {
      current.name = cat("fuzz-", target.name, "-file-", i);
      current.input = read_whole_file(argv[i], UINT64_MAX);
      tally.run();
    }
  }
  std::printf("%s: %lu runs, %lu accepted, %lu reports, worst %.1f ms, worst %.2f MB\n",
              target.name.c_str(), tally.runs, tally.accepted, tally.reports, tally.worst_s * 1e3,
              double(tally.worst_bytes) / 1e6);
  return tally.reports > 0 ? 1 : 0;
}

int run_program(int argc, char** argv) {
  // Files of the inputs: a disk would be most of the time.
  if (std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK) == 0)
    setenv("TMPDIR", "/dev/shm", 1);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);
  const std::vector<FuzzTarget> targets = fuzz_targets();
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  for (const FuzzTarget& target : targets) {
    if (wanted == target.name) return fuzz(target, argc, argv);
    if (wanted == "--list") std::printf("%s\n", target.name.c_str());
  }
  if (wanted == "--list") return 0;
  std::fprintf(stderr, "usage: %s --list | TARGET --runs N --seed S | TARGET FILE...\n", argv[0]);
  return 2;
}

}  // namespace
}  // namespace minfer::test

int main(int argc, char** argv) { return minfer::test::run_program(argc, argv); }
