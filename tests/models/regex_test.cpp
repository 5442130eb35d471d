#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "models/tokenizer/split.h"
#include "models/tokenizer/unicode_nfc.h"
#include "models/tokenizer/unicode_tables.h"
#include "tests/support/expect_error.h"

namespace minfer {
namespace {

using Words = std::vector<std::string>;

Words cut(const std::string& pattern, const std::string& text,
          SplitBehavior behavior = SplitBehavior::Isolated) {
  TextSplitter splitter;
  splitter.add_step(pattern, behavior);
  Words words;
  for (const std::string_view word : splitter.split(text)) words.emplace_back(word);
  return words;
}

struct Case {
  const char* pattern;
  std::string text;
  Words words;
};

// Expected: tokenizers 0.22.1, Split by the pattern, isolated.
class Pattern : public testing::TestWithParam<Case> {};

TEST_P(Pattern, CutsAsTheTokenizersPackageDoes) {
  EXPECT_EQ(cut(GetParam().pattern, GetParam().text), GetParam().words) << GetParam().pattern;
}

INSTANTIATE_TEST_SUITE_P(
    Quantifiers, Pattern,
    testing::Values(Case{"a{3,1}", "aaaaa", {"aaa", "aa"}}, Case{"a{,}", "a{,}a", {"a{,}", "a"}},
                    Case{"a{2}?", "aaaaa", {"aa", "aa", "a"}}, Case{"a{2}+", "aaaaaa", {"aaaaaa"}},
                    Case{"(?:a{1,2}+)a", "aaa", {"aaa"}}, Case{"a{1,2}?", "aaa", {"a", "a", "a"}},
                    Case{"a{1,x}", "a{1,x}", {"a{1,x}"}}, Case{"a*+a", "aaa", {"aaa"}},
                    Case{"(?:|a)+", "aab", {"a", "a", "b"}}, Case{"(?:a?)*", "aab", {"aa", "b"}},
                    Case{"a**", "aaa", {"aaa"}}, Case{"a(?#x)+", "aa", {"aa"}}));
INSTANTIATE_TEST_SUITE_P(Classes, Pattern,
                         testing::Values(Case{R"(\h+)", "0aFgxyz9", {"0aF", "gxyz", "9"}},
                                         Case{"[[a-m][0-4]]+", "a5z3b", {"a", "5z", "3b"}},
                                         Case{"[a-z&&[^aeiou]]+", "abcde", {"a", "bcd", "e"}},
                                         Case{"[^a&&b]+", "ab", {"ab"}},
                                         Case{"[]a]+", "]ab", {"]a", "b"}},
                                         Case{"[a-c-e]+", "ab-de", {"ab-", "d", "e"}},
                                         Case{R"(\w+)", "क\u093fx y", {"क\u093fx", " ", "y"}},
                                         Case{"[[:alpha:]]+", "क\u093f1", {"क\u093f", "1"}},
                                         Case{R"(\w+)", "a²b", {"a²b"}},
                                         Case{R"([\w]+)", "a²b", {"a", "²", "b"}},
                                         Case{"[[:punct:]]+", "a+.b", {"a", "+.", "b"}},
                                         Case{R"(\p{Punct}+)", "a+.b", {"a+", ".", "b"}},
                                         Case{R"(\p{ l-u }+)", "aBCd", {"a", "BC", "d"}},
                                         Case{R"(\p{Han}+)", "a世界b", {"a", "世界", "b"}},
                                         Case{" ?[^(\\s|[.,!?…。，、।۔،])]+",
                                              "Hello, world (a|b)",
                                              {"Hello", ",", " world", " (", "a", "|", "b", ")"}},
                                         Case{R"(\pL)", "apLb", {"a", "pL", "b"}}));
INSTANTIATE_TEST_SUITE_P(
    Groups, Pattern,
    testing::Values(Case{"a(?i)b|c", "aBaCc", {"aB", "aC", "c"}},
                    Case{"(?i:'S)", "'ſ'K", {"'ſ", "'K"}}, Case{R"(a\Kb)", "ab", {"a", "b"}},
                    Case{"a\\Kbc|abd", "abdabc", {"abd", "a", "bc"}},
                    Case{"(?<=\\d+ ?)a", "12 a1a a", {"12 ", "a", "1", "a", " a"}},
                    Case{"(?=(\\d{3})+(?!\\d))", "1234567", {"1", "234", "567"}},
                    Case{"", "ab", {"a", "b"}}, Case{"(?<=a|bc)d", "adbcd", {"a", "d", "bc", "d"}},
                    Case{"(?<=a(?:b|cd))e", "abeacde", {"ab", "e", "acd", "e"}},
                    Case{"(?<!a|bc)d", "adbcdxd", {"adbcdx", "d"}}, Case{"(?>a*)a", "aaa", {"aaa"}},
                    Case{R"(\Ga)", "aaba", {"a", "a", "ba"}}, Case{"$", "a\n", {"a", "\n"}},
                    Case{R"(\R)", "a\r\nb\nc", {"a", "\r\n", "b", "\n", "c"}},
                    Case{R"(\b)", "ab c²", {"ab", " ", "c²"}},
                    Case{"(?x) a b # c", "abab", {"ab", "ab"}}));

TEST(Regex, RefusesByName) {
  const std::pair<const char*, const char*> kRefused[] = {
      {R"((a)\1)", "back references"},
      {R"((?<x>a)\k<x>)", "back references"},
      {R"(\X)", "\\X is not supported"},
      {"(?~a)", "(?~ are not supported"},
      {"(a)(?(1)b)", "(?( are not supported"},
      {R"(\p{Foo})", "{Foo} is not known"},
      {"[[:foo:]]", "[:foo:] is not known"},
      {"(?<=a?+)b", "possessive look behind"},
      {"(?:(?>a\\Kb)c|abd)", "\\K within"},
      {"(?i:straße)", "under (?i)"},
      {"(?i:[ß])", "under (?i)"},
      {"*a", "a quantifier behind nothing"},
      {"[]", "empty character class"},
      {"[a", "not closed"},
      {"(a", "not closed"},
      {"a)", "closing parenthesis"},
      {"a\\", "ends too early"},
      {R"([\w-a])", "begins with a class"},
      {"(?:a?b?){2}", "may take no character"},
      {"(((a{1000}b){1000}){1000})", "too large"},
      {"((((){100000}){100000}){100000})", "may take no character"},
      {"a{100001}", "100000 times"},
  };
  for (const auto& [pattern, why] : kRefused) {
    test::expect_error(ErrorKind::Input, why, [&] { cut(pattern, "a"); });
  }
  test::expect_error(ErrorKind::Input, "deep", [] { cut(std::string(9000, '('), "a"); });
  test::expect_error(ErrorKind::Input, "deep", [] { cut(std::string(9000, '['), "a"); });
  test::expect_error(ErrorKind::Input, "quantifiers",
                     [] { cut("a" + std::string(9000, '+'), "a"); });
}

// Each of them takes at least the square of the text's length without a bound.
TEST(Regex, StepsAreBoundedByTheText) {
  for (const char* pattern :
       {"(?:a|a){18}b|a", "(a+)+b", "(?>a*)b", "a*b", "(?:(?=.*).)*b", "(?:(?=(?:(?=.*).)*).)*",
        "(?:aa?){30}b", "(?<!a{9999})a*?b", "(?<=b.*)a"}) {
    const auto start = std::chrono::steady_clock::now();
    test::expect_error(ErrorKind::Input, "1024 steps for each",
                       [&] { cut(pattern, std::string(20'000, 'a')); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << pattern;
  }
}

TEST(Regex, ALongRunIsOneMatch) {
  EXPECT_EQ(cut(kGpt2Pattern, std::string(1'000'000, 'a')).size(), 1u);
  EXPECT_EQ(cut(kGpt2Pattern, std::string(1'000'000, ' ') + "a").size(), 2u);
  EXPECT_EQ(cut("(?:a|b)*", std::string(300'000, 'b')).size(), 1u);
}

TEST(Unicode, IsOfVersion16) {
  EXPECT_EQ(cut(R"(\p{Lo}+)", "a\U000105c0b").size(), 3u);  // Unicode 16
  EXPECT_EQ(cut(R"(\p{So}+)", "a\U0001fa77b").size(), 3u);  // Unicode 15
  EXPECT_EQ(cut(R"(\p{Cn}+)", "a\U0010ffffb").size(), 3u);
  EXPECT_TRUE(is_white_space(0x85) && is_white_space(0x2003) && is_white_space('\v'));
  EXPECT_FALSE(is_white_space(0x180e) || is_white_space(0x200b) || is_white_space(0x1f));
  EXPECT_EQ(nfc("\U000105d2\u0307"), "\U000105c9");  // Unicode 16
}

// What \b needs is looked up once, however often it is repeated.
TEST(Regex, RepeatingAPatternIsFast) {
  for (const char* pattern :
       {R"((?:a\b){99999})", R"((?:[a-c]+\B){99999})", R"((?>\b\w){99999})"}) {
    const auto start = std::chrono::steady_clock::now();
    test::expect_error(ErrorKind::Input, "too large", [&] { cut(pattern, "a"); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1)) << pattern;
  }
}

}  // namespace
}  // namespace minfer
