#include "loaders/metadata.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/support/expect_error.h"

namespace minfer {
namespace {

using test::expect_error;

Metadata sample() {
  Metadata m;
  m.set("signed", int64_t{-3});
  m.set("unsigned", uint64_t{7});
  m.set("huge", std::numeric_limits<uint64_t>::max());
  m.set("real", 0.5);
  m.set("nan", std::nan(""));
  m.set("flag", true);
  m.set("text", std::string("one\ntwo"));
  m.set("texts", std::vector<std::string>{"a", "b", "c", "d", "e"});
  m.set("integers", std::vector<int64_t>{1, 2});
  m.set("numbers", std::vector<double>{0.5});
  m.set("flags", std::vector<bool>{true, false});
  return m;
}

TEST(Metadata, DeliversWhatIsThere) {
  const Metadata m = sample();
  EXPECT_EQ(m.integer("signed", -3, 0), -3);
  EXPECT_EQ(m.integer("unsigned", 0, 7), 7);
  EXPECT_EQ(m.number("real", 0, 1), 0.5);
  EXPECT_EQ(m.number("signed", -3, 0), -3.0);
  EXPECT_TRUE(m.boolean("flag"));
  EXPECT_EQ(m.text("text"), "one\ntwo");
  EXPECT_EQ(m.texts("texts").size(), 5u);
  EXPECT_EQ(m.integers("integers")[1], 2);
  EXPECT_EQ(m.numbers("numbers")[0], 0.5);
  EXPECT_TRUE(m.has("flags"));
}

TEST(Metadata, FallsBackOnlyWhereTheKeyIsAbsent) {
  const Metadata m = sample();
  EXPECT_EQ(m.integer_or("none", 5, 0, 9), 5);
  EXPECT_EQ(m.number_or("none", 2.5, 0, 9), 2.5);
  EXPECT_TRUE(m.boolean_or("none", true));
  EXPECT_EQ(m.text_or("none", "x"), "x");
  expect_error(ErrorKind::Input, "expected an integer", [&] { m.integer_or("text", 5, 0, 9); });
  expect_error(ErrorKind::Input, "expected 0 to 6", [&] { m.integer_or("unsigned", 5, 0, 6); });
}

TEST(Metadata, MissingWrongTypeAndOutOfRangeAreThreeMessages) {
  const Metadata m = sample();
  expect_error(ErrorKind::Input, "key none is missing", [&] { m.integer("none", 0, 1); });
  expect_error(ErrorKind::Input, "key real is a number, expected an integer",
               [&] { m.integer("real", 0, 1); });
  expect_error(ErrorKind::Input, "key signed is -3, expected 0 to 1",
               [&] { m.integer("signed", 0, 1); });
  expect_error(ErrorKind::Input, "key huge is 18446744073709551615, expected 0 to",
               [&] { m.integer("huge", 0, std::numeric_limits<int64_t>::max()); });
  expect_error(ErrorKind::Input, "key nan is nan", [&] { m.number("nan", -1e300, 1e300); });
  expect_error(ErrorKind::Input, "key text is text, expected a number",
               [&] { m.number("text", 0, 1); });
  expect_error(ErrorKind::Input, "expected a boolean", [&] { m.boolean("unsigned"); });
  expect_error(ErrorKind::Input, "expected text", [&] { m.text("flag"); });
  expect_error(ErrorKind::Input, "expected an array of texts", [&] { m.texts("text"); });
  expect_error(ErrorKind::Input, "expected an array of integers", [&] { m.integers("numbers"); });
  expect_error(ErrorKind::Input, "expected an array of numbers", [&] { m.numbers("integers"); });
}

TEST(Metadata, ShowsAValueOnOneLine) {
  const Metadata m = sample();
  EXPECT_EQ(m.as_text("signed"), "-3");
  EXPECT_EQ(m.as_text("flag"), "true");
  EXPECT_EQ(m.as_text("text"), "\"one\\x0atwo\"");
  EXPECT_EQ(m.as_text("texts"), "5 values: [\"a\", \"b\", \"c\", \"d\", ...]");
  EXPECT_EQ(m.as_text("flags"), "2 values: [true, false]");
}

}  // namespace
}  // namespace minfer
