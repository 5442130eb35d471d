#include "loaders/strict_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/expect_error.h"

namespace minfer {
namespace {

using test::expect_error;

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(StrictJson, TakesLegalDocuments) {
  const auto value =
      parse_strict_json(" {\"a\": [1, -2, 2.5, true, null, \"\\u00e9\"], \"b\": {}} \n");
  EXPECT_EQ(value.dump(), "{\"a\":[1,-2,2.5,true,null,\"\u00e9\"],\"b\":{}}");
  EXPECT_TRUE(value["a"][0].is_number_unsigned());
  EXPECT_EQ(parse_strict_json("7"), 7);
  EXPECT_EQ(parse_strict_json("18446744073709551615").get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(parse_strict_json("{\"x\": {\"k\": 1}, \"y\": {\"k\": 2}}")["y"]["k"], 2);
  EXPECT_EQ(parse_strict_json(nested(64)).size(), 1u);
}

struct Broken {
  const char* name;
  std::string text;
  const char* message;
};

class StrictJsonRefuses : public testing::TestWithParam<Broken> {};

TEST_P(StrictJsonRefuses, WithOneLine) {
  expect_error(ErrorKind::Input, GetParam().message, [] { parse_strict_json(GetParam().text); });
}

INSTANTIATE_TEST_SUITE_P(
    Rules, StrictJsonRefuses,
    testing::Values(
        Broken{"Empty", "", "byte 1"}, Broken{"Blank", " ", "byte 2"},
        Broken{"Cut", "{\"a\": 1", "byte 8"},
        Broken{"KeyTwice", "{\"a\": 1, \"a\": 1}", "key \"a\" twice"},
        Broken{"InnerKeyTwice", "[{\"x\": {\"a\": 1, \"b\": [], \"a\": 1}}]", "key \"a\" twice"},
        Broken{"EscapedKeyTwice", "{\"a\": 1, \"\\u0061\": 1}", "key \"a\" twice"},
        Broken{"TooDeep", nested(65), "more than 64 levels"},
        Broken{"HundredThousandBrackets", std::string(100'000, '['), "64 levels"},
        Broken{"TextAfter", "{} {}", "byte 4"}, Broken{"NulAfter", {"{}\0{}", 5}, "NUL"},
        Broken{"NotANumber", "{\"a\": NaN}", "byte 7"}, Broken{"Infinite", "[-Infinity]", "byte 3"},
        Broken{"PastADouble", "[1e999]", "number overflow"},
        Broken{"BadUtf8", "[\"\xc3(\"]", "byte 4"},
        Broken{"OverlongUtf8", "[\"\xc0\xaf\"]", "byte 3"},
        Broken{"LoneSurrogate", "[\"\\ud800\"]", "byte 9"},
        Broken{"ByteOrderMark", "\xef\xbb\xbf{}", "byte order mark"},
        Broken{"Comment", "{} // no", "byte 4"}, Broken{"TrailingComma", "[1,]", "byte 4"},
        Broken{"LeadingZero", "[01]", "byte 3"}, Broken{"ControlByte", "[\"\n\"]", "byte 3"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer
