#include "kernels/base/bytes_text.h"

#include <gtest/gtest.h>

namespace minfer {
namespace {

TEST(BytesText, HasTheLargestUnitThatIsFilled) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1 kB");
  EXPECT_EQ(bytes_text(8'234'567), "8.2 MB");
  EXPECT_EQ(bytes_text(98'123'456), "98.1 MB");
  EXPECT_EQ(bytes_text(999'900'000), "999.9 MB");
  EXPECT_EQ(bytes_text(13'480'000'000), "13.48 GB");
  EXPECT_EQ(bytes_text(83'000'000'000), "83 GB");
  EXPECT_EQ(bytes_text(1'500'000'000'000), "1.5 TB");
}

TEST(BytesText, NeverRoundsToAThousand) {
  EXPECT_EQ(bytes_text(999'949), "999.9 kB");
  EXPECT_EQ(bytes_text(999'950), "1 MB");
  EXPECT_EQ(bytes_text(999'999'999), "1 GB");
  EXPECT_EQ(bytes_text(999'999'999'999), "1 TB");
}

}  // namespace
}  // namespace minfer
