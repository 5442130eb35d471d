#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace minfer::test {
namespace {

// What comes out of each push, joined by '|'; "$" where the text stopped.
std::string pushed(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(std::move(stops));
  std::string out;
  for (const std::string& piece : pieces) {
    out += matcher.push(piece);
    out += matcher.stopped() ? "$" : "|";
    if (matcher.stopped()) return out;
  }
  return out + matcher.flush();
}

TEST(StopMatcher, LetsTextThrough) {
  EXPECT_EQ(pushed({}, {"one ", "two"}), "one |two|");
  EXPECT_EQ(pushed({"###"}, {"one ", "two"}), "one |two|");
}

TEST(StopMatcher, StopsInsideOnePiece) { EXPECT_EQ(pushed({"###"}, {"one###two"}), "one$"); }

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  EXPECT_EQ(pushed({"###"}, {"a#", "#", "#b"}), "a||$");
  EXPECT_EQ(pushed({"###"}, {"a#", "#", "b"}), "a||##b|");
  EXPECT_EQ(pushed({"###"}, {"a##"}), "a|##");  // the end of the text lets it go
}

TEST(StopMatcher, FallsBackWithinAStopThatRepeatsItself) {
  EXPECT_EQ(pushed({"aab"}, {"a", "a", "a", "b", "c"}), "||a|$");
  EXPECT_EQ(pushed({"abab!"}, {"ab", "ab", "ab", "!"}), "||ab|$");
}

TEST(StopMatcher, TheFirstCompleteOneWinsAndOfThoseTheLongest) {
  EXPECT_EQ(pushed({"abc", "b"}, {"abc"}), "a$");
  EXPECT_EQ(pushed({"abc", "b"}, {"a", "b", "c"}), "|a$");
  EXPECT_EQ(pushed({"c", "abc"}, {"xabc"}), "x$");
}

// However a text is cut into pieces, the same text comes out.
TEST(StopMatcher, CutsDoNotMatter) {
  const std::string text = "the theme then: thEND and END";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      StopMatcher matcher({"END", "theN", "then;"});
      std::string out;
      for (const std::string& piece :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        out += matcher.push(piece);
      }
      EXPECT_TRUE(matcher.stopped());
      EXPECT_EQ(out + matcher.flush(), "the theme then: th");
    }
  }
}

TEST(StopMatcher, RefusesAnEmptyStop) {
  expect_error(ErrorKind::Usage, "a stop string is empty", [] { StopMatcher({"x", ""}); });
}

}  // namespace
}  // namespace minfer::test
