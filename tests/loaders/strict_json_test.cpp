#include "loaders/strict_json.h"

#include <gtest/gtest.h>

#include <limits>
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
                    BrokenJson{"NotANumber", "{\"a\": NaN}", "byte 7: key \"a\" has NaN"},
                    BrokenJson{"Infinite", "[-Infinity]", "byte 2: -Infinity"},
                    BrokenJson{"PastADouble", "[1e999]", "byte 2: a number past a double"},
                    BrokenJson{"BadUtf8", "[\"\xc3(\"]", "byte 3"},
                    BrokenJson{"OverlongUtf8", "[\"\xc0\xaf\"]", "byte 3"},
                    BrokenJson{"LoneSurrogate", "[\"\\ud800\"]", "byte 3"},
                    BrokenJson{"ByteOrderMark", "\xef\xbb\xbf{}", "byte order mark"},
                    BrokenJson{"Comment", "{} // no", "byte 4"},
                    BrokenJson{"TrailingComma", "[1,]", "byte 4"},
                    BrokenJson{"LeadingZero", "[01]", "byte 3"},
                    BrokenJson{"ControlByte", "[\"\n\"]", "byte 3"}),
    [](const auto& info) { return info.param.name; });

TEST(PythonJson, TakesWhatPythonWrites) {
  std::vector<std::string> warnings;
  const auto parse = [&](std::string_view text) {
    warnings.clear();
    return parse_python_json(text, "f", warnings);
  };
  EXPECT_EQ(parse("[NaN]").dump(), "[null]");
  EXPECT_EQ(warnings,
            std::vector<std::string>{"f: NaN, which JSON does not have: read as Python does"});
  EXPECT_EQ(parse("-Infinity").get<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse("[1, -1e400]")[1].get<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(warnings, std::vector<std::string>{"f: a number past a double: infinite"});
  EXPECT_EQ(parse(std::string(400, '9')).get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse(R"({"a": {"x": 1}, "b": 2, "a": 3, "\u0061": 4})").dump(), R"({"a":4,"b":2})");
  EXPECT_EQ(warnings, std::vector<std::string>(2, "f: key \"a\" twice: the last one counts"));
  // The key that is named is the one that the value belongs to.
  parse(R"({"a": [{"b": 1}, Infinity]})");
  EXPECT_EQ(warnings[0].substr(0, 21), "f: key \"a\" has Infini");
  parse("[" + std::string(7, ' ') + "NaN,NaN,NaN,NaN,NaN,NaN,NaN]");
  ASSERT_EQ(warnings.size(), 5u);
  EXPECT_EQ(warnings[4], "f: 3 more of what JSON does not have");
  EXPECT_EQ(parse("\xef\xbb\xbf[1]").dump(), "[1]");
  EXPECT_EQ(warnings, std::vector<std::string>{"f: a byte order mark in front: skipped"});
  for (const char* text : {"nan", "[Inf]", "+1", "[+Infinity]", "[--Infinity]", "[\"\\ud83e\"]",
                           "[\"\\udd70\\ud83e\"]", "[\"\\ud83e\\u0041\"]", "{a: 1}", "['a']"}) {
    expect_error(ErrorKind::Input, "malformed JSON: byte", [&] { parse(text); });
  }
}

TEST(PythonJson, NumbersAndStringsByTheLetter) {
  const auto is = [](const char* text, const nlohmann::json& value) {
    EXPECT_EQ(parse_strict_json(text), value) << text;
  };
  is("-0", 0);
  is("-9223372036854775808", INT64_MIN);
  is("-9223372036854775809", -9223372036854775809.0);
  is("18446744073709551616", 18446744073709551616.0);
  is("1000000000000000019884624838656", 1e30);
  is("1E+2", 100.0);
  is("2.5e-1", 0.25);
  is("1e-999", 0.0);
  is("0.000e99999999999999999999", 0.0);
  is(("0." + std::string(400, '0') + "1").c_str(), 0.0);
  is(("0." + std::string(400, '0') + "1e400").c_str(), 0.1);
  is("\"\\ud83e\\udd70\\n\\/\\u00e9\\uFFFF\"", "\xf0\x9f\xa5\xb0\n/\u00e9\uffff");
  for (const char* text : {"1.", ".5", "1e", "1e+", "-", "0x10", "1_0", "\"\\x\"", "\"\\u12\"",
                           "\"\\u12g4\"", "\"\\u-123\"", "\"a", "\"\\"}) {
    expect_error(ErrorKind::Input, "malformed JSON: byte", [&] { parse_strict_json(text); });
  }
}

TEST(StreamedJsonTest, HandsOverWhatIsWanted) {
  std::vector<std::string> taken;
  const TakeJson take = [&](std::string&& key, nlohmann::json&& value) {
    taken.push_back(key + "=" + value.dump());
  };
  const auto rest = parse_strict_json(
      R"({"model": {"vocab": {"a": 0, "b": {"vocab": [1]}}, "type": "x"}, "vocab": {"c": 1},
          "list": [[1, 2], "s"], "other": {"model": {"vocab": {"d": 2}}}})",
      {{{"model", "vocab"}, take}, {{"list"}, take}});
  EXPECT_EQ(taken, (std::vector<std::string>{"a=0", "b={\"vocab\":[1]}", "=[1,2]", "=\"s\""}));
  EXPECT_EQ(rest.dump(), R"({"list":[],"model":{"type":"x","vocab":{}},)"
                         R"("other":{"model":{"vocab":{"d":2}}},"vocab":{"c":1}})");
  taken.clear();
  parse_strict_json(R"({"a": 1, "b": [2]})", {{{}, take}});
  EXPECT_EQ(taken, (std::vector<std::string>{"a=1", "b=[2]"}));
}

}  // namespace
}  // namespace minfer
