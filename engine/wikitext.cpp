#include "engine/wikitext.h"

#include <utility>

#include "engine/white_space.h"

namespace minfer {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at; (at = text.find(from)) != std::string_view::npos;) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

// White space just inside each pair is dropped; a pair ends at the first `close`.
std::string trimmed_inside(std::string_view text, char open, char close) {
  std::string out;
  while (true) {
    const size_t begin = text.find(open);
    const size_t end = begin == std::string_view::npos ? begin : text.find(close, begin + 1);
    if (end == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, begin + 1));
    out.append(trimmed(text.substr(begin + 1, end - begin - 1)));
    out += close;
    text.remove_prefix(end + 1);
  }
}

bool is_page_heading(std::string_view line) {
  const std::string closed = replaced(replaced(line, "= = =", "==="), "= =", "==");
  const std::string_view heading = trimmed(closed);
  return heading.starts_with("= ") && heading.ends_with(" =");
}

// The text up to the first newline, that included, is taken off its front.
std::string_view take_line(std::string_view& text) {
  const size_t newline = text.find('\n');
  const std::string_view line = text.substr(0, newline == text.npos ? newline : newline + 1);
  text.remove_prefix(line.size());
  return line;
}

}  // namespace

std::string with_universal_newlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i] == '\r' ? '\n' : text[i];
    if (text.substr(i).starts_with("\r\n")) ++i;
  }
  return out;
}

std::string hf_join(std::string_view raw) {
  std::string joined;
  bool first = true;
  while (!raw.empty()) {
    const std::string_view line = take_line(raw);
    if (!std::exchange(first, false)) joined += "\n\n";
    if (!trimmed(line).empty()) joined += line;
  }
  return joined;
}

std::vector<std::string> wikitext_pages(std::string_view raw) {
  std::vector<std::string> pages;
  std::string page;
  const auto finish = [&] {
    // The newline before a heading separates the pages and belongs to neither.
    if (page.ends_with('\n')) page.pop_back();
    if (!trimmed(page).empty()) pages.push_back(std::move(page));
    page.clear();
  };
  while (!raw.empty()) {
    const std::string_view line = take_line(raw);
    if (is_page_heading(line)) finish();
    page += line;
  }
  if (!trimmed(page).empty()) pages.push_back(std::move(page));
  return pages;
}

std::string detokenized(std::string page) {
  using Replacement = std::pair<const char*, const char*>;
  const auto replace_all = [&page](std::initializer_list<Replacement> replacements) {
    for (const auto& [from, to] : replacements) page = replaced(page, from, to);
  };
  replace_all({{"s '", "s'"}});
  // A pattern of the original, meant for years such as ' 98, that puts itself in.
  for (char digit = '0'; digit <= '9'; ++digit) {
    page = replaced(page, std::string("/' ") + digit + "/", "/'[0-9]/");
  }
  replace_all({{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}});
  replace_all({{" : ", ": "}, {" ; ", "; "}, {" . ", ". "}});
  replace_all({{" ! ", "! "}, {" ? ", "? "}, {" , ", ", "}});
  page = trimmed_inside(page, '(', ')');
  page = trimmed_inside(page, '[', ']');
  page = trimmed_inside(page, '{', '}');
  page = trimmed_inside(page, '"', '"');
  page = trimmed_inside(page, '\'', '\'');
  replace_all({{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="}});
  replace_all({{" \u00b0 ", "\u00b0"}, {" \n", "\n"}, {"\n ", "\n"}});
  replace_all({{" N ", " 1 "}, {" 's", "'s"}});
  return page;
}

int64_t count_words(std::string_view page) {
  int64_t n_words = 1;
  bool in_space = false;
  while (!page.empty()) {
    const size_t space = space_bytes(page);
    if (space > 0 && !in_space) ++n_words;
    in_space = space > 0;
    page.remove_prefix(space > 0 ? space : 1);
  }
  return n_words;
}

}  // namespace minfer
