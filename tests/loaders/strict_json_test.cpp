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

struct BrokenJson {
  const char* name;
  std::string text;
  const char* message;
};

class StrictJsonRefuses : public testing::TestWithParam<BrokenJson> {};

TEST_P(StrictJsonRefuses, WithOneLine) {
  expect_error(ErrorKind::Input, GetParam().message, [] { parse_strict_json(GetParam().text); });
}

INSTANTIATE_TEST_SUITE_P(
    Rules, StrictJsonRefuses,
    testing::Values(BrokenJson{"Empty", "", "byte 1"}, BrokenJson{"Blank", " ", "byte 2"},
                    BrokenJson{"Cut", "{\"a\": 1", "byte 8"},
                    BrokenJson{"KeyTwice", "{\"a\": 1, \"a\": 1}", "key \"a\" twice"},
                    BrokenJson{"InnerKeyTwice", "[{\"x\": {\"a\": 1, \"b\": [], \"a\": 1}}]",
                               "key \"a\" twice"},
                    BrokenJson{"EscapedKeyTwice", "{\"a\": 1, \"\\u0061\": 1}", "key \"a\" twice"},
                    BrokenJson{"TooDeep", nested(65), "more than 64 levels"},
                    BrokenJson{"HundredThousandBrackets", std::string(100'000, '['), "64 levels"},
                    BrokenJson{"TextAfter", "{} {}", "byte 4"},
                    BrokenJson{"NulAfter", {"{}\0{}", 5}, "NUL"},
                    BrokenJson{"NotANumber", "{\"a\": NaN}", "byte 7"},
                    BrokenJson{"Infinite", "[-Infinity]", "byte 3"},
                    BrokenJson{"PastADouble", "[1e999]", "number overflow"},
                    BrokenJson{"BadUtf8", "[\"\xc3(\"]", "byte 4"},
                    BrokenJson{"OverlongUtf8", "[\"\xc0\xaf\"]", "byte 3"},
                    BrokenJson{"LoneSurrogate", "[\"\\ud800\"]", "byte 9"},
                    BrokenJson{"ByteOrderMark", "\xef\xbb\xbf{}", "byte order mark"},
                    BrokenJson{"Comment", "{} // no", "byte 4"},
                    BrokenJson{"TrailingComma", "[1,]", "byte 4"},
                    BrokenJson{"LeadingZero", "[01]", "byte 3"},
                    BrokenJson{"ControlByte", "[\"\n\"]", "byte 3"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer
