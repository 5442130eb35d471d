#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// The two forms in which WikiText's raw file is evaluated, besides the file as it is.

// The text as Python reads a file ("universal newlines"): "\r\n" and a lone "\r" become "\n".
std::string with_universal_newlines(std::string_view text);

// As the Hugging Face data set is joined for GPTQ: each line keeps its newline, a line of white
// space alone becomes empty, two newlines stand between the lines.
std::string hf_join(std::string_view raw);

// The pages of the document-level data set of lm-evaluation-harness: a page begins at a heading of
// level 1 ("= Title ="); what is only white space before the first is no page.
std::vector<std::string> wikitext_pages(std::string_view raw);

// The page as prose: WikiText's marks and spaces around punctuation undone as
// lm-evaluation-harness does it (task wikitext, version 2), its oddities included.
std::string detokenized(std::string page);

// Parts between stretches of white space, empty parts at the ends counted.
int64_t count_words(std::string_view page);

}  // namespace minfer
