#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex_syntax.h"

namespace minfer {

// Reads a pattern from left to right; regex_class_parser.cpp has its classes and escapes.
class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : rest_(pattern) {}
  ParsedRegex parse();

 private:
  struct Options {
    bool ignore_case = false, dot_all = false, extended = false;
  };
  struct Quantifier {
    int64_t min, max;
    bool lazy = false, possessive = false;
  };
  // What a backslash stands for.
  struct Escape {
    std::optional<char32_t> code;  // this character
    CodeSet set;                   // without `code`: any character of this set
  };

  [[noreturn]] static void refuse(std::string_view why);
  bool at_end() const { return rest_.empty(); }
  bool starts_with(std::string_view text) const { return rest_.starts_with(text); }
  bool take(std::string_view text);
  char32_t next();
  void skip_ignored(const Options& options);

  // Reads up to the end of the group, but does not take its closing parenthesis.
  RegexNode alternatives(Options options, int depth);
  RegexNode branch(const Options& options, int depth);
  RegexNode atom(const Options& options, int depth);
  RegexNode group(const Options& options, int depth);
  RegexNode option_group(Options options, int depth);
  RegexNode closed(RegexNode node);  // takes the closing parenthesis
  std::optional<Quantifier> quantifier();
  std::optional<Quantifier> interval();
  RegexNode quantified(RegexNode target, const Options& options, int depth);
  RegexNode escaped(const Options& options);
  RegexNode literal(char32_t code, const Options& options);
  RegexNode set_node(const CodeSet& set);

  CodeSet char_class(const Options& options, int depth);
  CodeSet class_members(int depth, bool& negated);
  std::optional<CodeSet> posix_class();
  Escape class_escape(bool in_class);
  CodeSet property(bool negated);
  std::optional<char32_t> character_escape(char32_t letter, bool in_class);
  std::optional<char32_t> number(int base, size_t min_digits, size_t max_digits);
  char32_t braced_number(int base);
  void charge(const CodeSet& set);

  std::string_view rest_;
  std::u32string folded_run_;  // letters in a row under (?i), folded
  std::map<std::vector<CodeRange>, uint32_t> set_ids_;
  std::vector<CodeSet> sets_;
  size_t n_ranges_ = 0;  // handled so far, over all sets
};

}  // namespace minfer
