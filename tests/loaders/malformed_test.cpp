#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "tests/support/allocation_meter.h"
#include "tests/support/load_everything.h"
#include "tests/support/sample_models.h"

// Every prefix of a sound file, and every byte of its headers changed: each either loads or ends in
// one Input error of one line, in bounded time and memory.
namespace minfer {
namespace {

using namespace test;

class Malformed : public testing::TestWithParam<SampleModel> {
 protected:
  // Loads the sample with these bytes; says whether it was accepted.
  bool load(const std::string& bytes, const std::string& what) {
    dir_.write(bytes);
    uint64_t all_bytes = bytes.size();
    for (const auto& [name, other] : GetParam().others) all_bytes += other.size();
    const std::clock_t start = std::clock();  // of the processor: others may be busy beside this
    const size_t held = held_bytes();
    reset_peak();
    bool accepted = true;
    try {
      load_everything(dir_.model());
    } catch (const Error& e) {
      accepted = false;
      EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(ErrorKind::Input)) << what << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << what << e.what();
      EXPECT_TRUE(std::string(e.what()).starts_with(dir_.model())) << what << e.what();
    }
    const double taken = double(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LE(peak_bytes() - held, 2 * all_bytes + (16 << 20)) << what;
    EXPECT_LE(taken, 1.0) << what;
    return accepted;
  }

  SampleDir dir_{GetParam()};
};

TEST_P(Malformed, SoundFileLoads) { EXPECT_TRUE(load(GetParam().bytes, "sound")); }

TEST_P(Malformed, EveryPrefixIsHandled) {
  const std::string& bytes = GetParam().bytes;
  for (size_t n = 0; n < bytes.size(); ++n) load(bytes.substr(0, n), cat("prefix ", n, ": "));
}

TEST_P(Malformed, EveryHeaderByteIsHandled) {
  std::string bytes = GetParam().bytes;
  for (size_t i = 0; i < std::min(GetParam().header_bytes, bytes.size()); ++i) {
    const char original = bytes[i];
    std::vector<int> values = {0x00, 0xff};
    for (int bit = 0; bit < 8; ++bit) values.push_back(original ^ (1 << bit));
    for (const int value : values) {
      bytes[i] = static_cast<char>(value);
      load(bytes, cat("byte ", i, " = ", value, ": "));
    }
    bytes[i] = original;
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, Malformed, testing::ValuesIn(sample_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer
