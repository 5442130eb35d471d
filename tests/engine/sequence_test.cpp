#include "engine/sequence.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/expect_error.h"

namespace minfer::test {
namespace {

void extend(Sequence& sequence, int64_t n) {
  sequence.reserve(n);
  sequence.advance(n);
}

TEST(Sequence, TakesPagesAsItGrowsAndGivesThemBack) {
  PagePool pool(5);
  {
    Sequence sequence(pool);
    EXPECT_EQ(sequence.pages().size(), 0u);
    extend(sequence, 1);
    EXPECT_EQ(sequence.pages().size(), 1u);
    extend(sequence, 127);
    EXPECT_EQ(sequence.pages().size(), 1u);
    extend(sequence, 1);
    EXPECT_EQ(sequence.pages().size(), 2u);
    sequence.reserve(300);
    EXPECT_EQ(sequence.pages().size(), 4u);
    EXPECT_EQ(std::set(sequence.pages().begin(), sequence.pages().end()).size(), 4u);
    EXPECT_EQ(sequence.pos(), 129);
    EXPECT_EQ(sequence.truncate(128), 128);
    EXPECT_EQ(sequence.pages().size(), 1u);
    EXPECT_EQ(pool.n_free(), 4);
    Sequence other = std::move(sequence);
    EXPECT_EQ(other.pos(), 128);
    other = Sequence(pool);
  }
  EXPECT_EQ(pool.n_free(), 5);
}

TEST(Sequence, SharesTheWholePagesOfABeginning) {
  PagePool pool(8);
  Sequence first(pool);
  extend(first, 400);  // three pages and a part
  Sequence second(first, 300);
  EXPECT_EQ(second.pos(), 256);
  EXPECT_EQ(pool.n_free(), 4);
  EXPECT_EQ(second.pages()[1], first.pages()[1]);
  extend(second, 100);
  EXPECT_NE(second.pages()[2], first.pages()[2]);
  // Neither writes where the other reads: the page in which it would end is given up.
  EXPECT_EQ(first.truncate(200), 128);
  EXPECT_EQ(first.pages().size(), 1u);
  EXPECT_EQ(second.truncate(300), 300);
  EXPECT_EQ(second.truncate(200), 200);  // that page is its own now
  first = Sequence(pool);
  EXPECT_EQ(pool.n_free(), 6);
  EXPECT_EQ(Sequence(second, 127).pos(), 0);
}

TEST(Sequence, GivesBackWhatIsBehindItsWindow) {
  PagePool pool(4);
  Sequence sequence(pool, /*window=*/100);
  for (int64_t pos = 0; pos < 5000; pos += 50) {
    extend(sequence, 50);
    // The row at `pos` sees pos - 99 ... pos.
    for (int64_t i = std::max<int64_t>(0, pos - 99) / kPagePositions; i < pages_for(pos + 50);
         ++i) {
      EXPECT_GE(sequence.pages()[size_t(i)], 0) << pos;
    }
  }
  EXPECT_GE(pool.n_free(), 4 - most_pages(5000, 100, 50));
  EXPECT_EQ(sequence.truncate(4999), 4999);
  EXPECT_EQ(Sequence(sequence, 4000).pos(), 0);  // its beginning is not there
  EXPECT_EQ(sequence.truncate(4000), 0);
  EXPECT_EQ(pool.n_free(), 4);
}

TEST(Sequence, NeedsNoMoreThanMostPages) {
  for (const int64_t window : {0, 1, 100, 128, 129, 1000}) {
    for (const int64_t chunk : {1, 64, 128, 500}) {
      const int64_t n_pages = most_pages(2000, window, chunk);
      PagePool pool(n_pages);
      Sequence sequence(pool, window);
      for (int64_t pos = 0; pos < 2000; pos += chunk) {
        extend(sequence, std::min(chunk, 2000 - pos));
      }
    }
  }
  EXPECT_EQ(most_pages(2000, 0, 100), 16);
  EXPECT_EQ(most_pages(2000, 1000, 128), 10);
}

TEST(PagePool, RefusesAPageThatIsNotThere) {
  PagePool pool(1);
  Sequence sequence(pool);
  expect_error(ErrorKind::Internal, "no page is free of 1", [&] { sequence.reserve(129); });
}

}  // namespace
}  // namespace minfer::test
