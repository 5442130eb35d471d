#include "engine/wikitext.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/white_space.h"
#include "loaders/checksum.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

TEST(WhiteSpace, IsThatOfPython) {
  for (const char* space : {" ", "\t", "\n", "\v", "\r", "\x1c", "\x1f", "\u0085", "\u00a0",
                            "\u2003", "\u200a", "\u2028", "\u3000"}) {
    EXPECT_EQ(space_bytes(std::string(space) + "x"), std::string(space).size());
  }
  for (const char* other : {"", "x", "\x1b", "\u200b", "\ufeff", "\xa0", "\xc2"}) {
    EXPECT_EQ(space_bytes(other), 0u) << other;
  }
  EXPECT_EQ(trimmed(" \u00a0a b\u2003\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(without_trailing_space(" a\u00e0 "), " a\u00e0");
}

// Right values: io.StringIO(text, newline=None).read() of Python.
TEST(UniversalNewlines, AreThoseOfPython) {
  for (const auto& [text, read] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"a\r\nb\n", "a\nb\n"},
           {"a\rb\r", "a\nb\n"},
           {"\r\r\n\n\r", "\n\n\n\n"},
           {"\n\r", "\n\n"},
           {"a\x0b\u2028\x85 b", "a\x0b\u2028\x85 b"}}) {
    EXPECT_EQ(with_universal_newlines(text), read);
  }
}

TEST(HfJoin, RowsAreLinesWithTheirNewlines) {
  EXPECT_EQ(hf_join(""), "");
  EXPECT_EQ(hf_join("a\n"), "a\n");
  EXPECT_EQ(hf_join("a"), "a");
  EXPECT_EQ(hf_join(" \n = A = \n \n b \n"), "\n\n = A = \n\n\n\n\n b \n");
}

TEST(WikitextPages, BeginAtHeadingsOfLevelOne) {
  EXPECT_EQ(wikitext_pages(" \n = A = \n x\n = = B = = \n y\n = C D = \n z\n"),
            (std::vector<std::string>{" = A = \n x\n = = B = = \n y", " = C D = \n z\n"}));
  EXPECT_EQ(wikitext_pages(" \n\n = A = \nx"), std::vector<std::string>{" = A = \nx"});
  EXPECT_EQ(wikitext_pages("no heading\n"), std::vector<std::string>{"no heading\n"});
  EXPECT_TRUE(wikitext_pages(" \n").empty());
}

TEST(Detokenized, UndoesMarksAndSpaces) {
  const auto expect = [](const char* page, const char* prose) {
    EXPECT_EQ(detokenized(page), prose);
  };
  expect("the boys ' dog 's tail", "the boys'dog's tail");
  expect("up @-@ to @-@ date , 1 @,@ 000 ; 2 @.@ 5 : 3 . So ! Yes ? No",
         "up-to-date, 1,000; 2.5: 3. So! Yes? No");
  expect("( a ( b ) c ) [ d ] { e } \" f \" ' g ' ( h", "(a ( b) c ) [d] {e} \"f\" 'g' ( h");
  expect(" = = = A = = = \n b \u00b0 C \n N N ", " === A ===\nb\u00b0C\nN 1 ");
  expect("/' 7/ x", "/'[0-9]/ x");
}

TEST(CountWords, CountsEmptyEnds) {
  EXPECT_EQ(count_words(""), 1);
  EXPECT_EQ(count_words("a  b"), 2);
  EXPECT_EQ(count_words(" a\u00a0b \n"), 4);
}

// Digests of what a Python transcript of the two recipes makes of the file; pages joined by NUL.
TEST(Wikitext2, IsWhatPythonMakesOfIt) {
  const auto path = data_dir() / "wikitext-2-raw/wiki.test.raw";
  MINFER_NEEDS(path);
  const std::string raw = read_file(path);
  EXPECT_EQ(sha256_hex(hf_join(raw)),
            "696cca6b65a171b0a358a4be6732cdfdf2dd6164a32e20fd70e3c13fc4dfae83");
  const std::vector<std::string> pages = wikitext_pages(raw);
  EXPECT_EQ(pages.size(), 62u);
  std::string prose;
  int64_t n_words = 0;
  for (const std::string& page : pages) {
    n_words += count_words(page);
    prose += prose.empty() ? "" : std::string(1, '\0');
    prose += detokenized(page);
  }
  EXPECT_EQ(n_words, 241335);
  EXPECT_EQ(sha256_hex(prose), "b0ae50e166add20959a5406d9b3c99fe1f23819ec0a10149047149434fb85d81");
}

}  // namespace
}  // namespace minfer::test
