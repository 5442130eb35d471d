#include "kernels/base/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/base/host_tensor.h"

namespace minfer {
namespace {

constexpr int64_t kBig = int64_t{1} << 32;

TEST(Shape, AnOverflowingProductIsRefusedEvenBesideAZero) {
  EXPECT_EQ((Shape{3, 5, 7}).n_elements(), 105);
  EXPECT_EQ((Shape{}).n_elements(), 1);
  EXPECT_EQ((Shape{4, 0}).n_elements(), 0);
  EXPECT_THROW((Shape{kBig, kBig}).n_elements(), Error);
  EXPECT_THROW((Shape{0, kBig, kBig}).n_elements(), Error);
}

TEST(BytesOf, CountsWholeBlocks) {
  EXPECT_EQ(bytes_of(DType::F16, Shape{3, 5}), 30);
  EXPECT_EQ(bytes_of(DType::Q4_1, Shape{2, 64}), 2 * 2 * 20);
  EXPECT_EQ(bytes_of(DType::Q6_K, 512), 420);
  EXPECT_THROW(bytes_of(DType::Q8_0, Shape{2, 48}), Error);
  EXPECT_THROW(bytes_of(DType::F32, int64_t{1} << 62), Error);
}

TEST(Tensor, RowsStartWhereTheyShould) {
  HostTensor t(DType::F32, {4, 3});
  for (int i = 0; i < 12; ++i) t.as<float>()[i] = float(i);
  const Tensor part = t.view().rows(1, 2);
  EXPECT_EQ(part.shape, (Shape{2, 3}));
  EXPECT_EQ(part.as<float>()[0], 3.0f);
  EXPECT_THROW(t.view().rows(3, 2), Error);
  EXPECT_THROW(part.as<f16>(), Error);
}

TEST(HostTensor, ResetKeepsMemoryThatIsLargeEnough) {
  HostTensor t(DType::F32, {4, 4});
  const void* const memory = t.view().data;
  t.reset(DType::U8, {7});
  EXPECT_EQ(t.view().shape, Shape{7});
  t.reset(DType::F16, {32});
  EXPECT_EQ(t.view().data, memory);
  t.reset(DType::F32, {1 << 16});
  std::memset(t.view().data, 1, 4 << 16);
  EXPECT_EQ(t.at(65535), t.at(0));
  HostTensor other = std::move(t);
  t.reset(DType::F32, {2});
  EXPECT_NE(t.view().data, other.view().data);
}

TEST(Narrow, RefusesWhatDoesNotFit) {
  EXPECT_EQ(narrow<int>(int64_t{7}), 7);
  EXPECT_THROW(narrow<int>(kBig), Error);
  EXPECT_THROW(narrow<unsigned>(-1), Error);
}

}  // namespace
}  // namespace minfer
