#include "kernels/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/base/error.h"

namespace minfer {
namespace {

std::string encode(uint32_t code_point) {
  const auto byte = [](uint32_t x) { return static_cast<char>(x); };
  if (code_point < 0x80) return {byte(code_point)};
  if (code_point < 0x800) return {byte(0xc0 | code_point >> 6), byte(0x80 | (code_point & 63))};
  if (code_point < 0x10000) {
    return {byte(0xe0 | code_point >> 12), byte(0x80 | (code_point >> 6 & 63)),
            byte(0x80 | (code_point & 63))};
  }
  return {byte(0xf0 | code_point >> 18), byte(0x80 | (code_point >> 12 & 63)),
          byte(0x80 | (code_point >> 6 & 63)), byte(0x80 | (code_point & 63))};
}

TEST(Utf8, EveryCodePointButTheSurrogates) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = encode(c);
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(utf8_char_bytes(text + "x"), surrogate ? 0 : text.size()) << c;
    for (size_t n = 1; n < text.size() && !surrogate; ++n) {
      ASSERT_EQ(utf8_char_bytes(text.substr(0, n)), 0u) << c;
      ASSERT_EQ(utf8_incomplete_tail("a" + text.substr(0, n)), n) << c;
    }
    if (!surrogate) {
      ASSERT_EQ(utf8_incomplete_tail(text), 0u) << c;
    }
  }
}

TEST(Utf8, RefusesOverlongFormsAndStrayBytes) {
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3("}) {
    EXPECT_EQ(utf8_char_bytes(bad), 0u) << bad;
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
  EXPECT_EQ(utf8_incomplete_tail("\xe0\x80"), 0u);  // no character begins so
}

TEST(Shortened, IsOneSafeLine) {
  EXPECT_EQ(shortened("plain é"), "plain é");
  EXPECT_EQ(shortened("a\nb\x1b[0m\xff"), "a\\x0ab\\x1b[0m\\xff");
  EXPECT_EQ(shortened(std::string(200, 'x'), 5), "xxxxx...");
}

// C1 controls, bidirectional marks and line separators do to a terminal what control bytes do.
TEST(Shortened, EscapesWhatMovesOrTurnsText) {
  for (const char* bad : {"\u0080", "\u0085", "\u009b", "\u009f", "\u061c", "\u200e", "\u200f",
                          "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069"}) {
    const std::string shown = shortened(std::string("a") + bad + "b");
    EXPECT_TRUE(shown.starts_with("a\\x") && shown.ends_with("b")) << shown;
    EXPECT_EQ(shown.size(), 2 + 4 * std::string_view(bad).size()) << shown;
  }
  for (const char* good : {"\u00a0", "\u00e9", "\u061b", "\u061d", "\u200d", "\u2010", "\u2027",
                           "\u202f", "\u2065", "\u206a", "\u65e5", "\U0001f600"}) {
    EXPECT_EQ(shortened(good), good);
  }
}

}  // namespace
}  // namespace minfer
