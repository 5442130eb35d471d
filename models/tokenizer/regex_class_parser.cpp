#include <algorithm>

#include "kernels/base/error.h"
#include "models/tokenizer/regex_parser.h"
#include "models/tokenizer/unicode_tables.h"

namespace minfer {
namespace {

constexpr int kMaxClassDepth = 50;

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 16;
}

bool is_character(char32_t code) { return code <= kMaxCode && !(code >= 0xd800 && code <= 0xdfff); }

}  // namespace

// These six do not count within brackets.
CodeSet regex_word_set() {
  return code_points_of("word")->united(CodeSet({{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}));
}

// One to max_digits digits of the base at the front; none where there are fewer than min_digits.
std::optional<char32_t> RegexParser::number(int base, size_t min_digits, size_t max_digits) {
  size_t n = 0;
  char32_t value = 0;
  for (; n < std::min(max_digits, rest_.size()) && digit_value(rest_[n]) < base; ++n) {
    value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit_value(rest_[n]));
  }
  if (n < min_digits) return {};
  rest_.remove_prefix(n);
  return value;
}

char32_t RegexParser::braced_number(int base) {
  const std::optional<char32_t> code = number(base, 1, 8);
  if (!code || !take("}")) refuse("\\x{ or \\o{ holds no single code point");
  if (!is_character(*code)) refuse("a code point that is none");
  return *code;
}

// None: the letter stands for no character this way.
std::optional<char32_t> RegexParser::character_escape(char32_t letter, bool in_class) {
  constexpr std::pair<char32_t, char32_t> kControls[] = {
      {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}, {'a', '\a'}, {'e', 0x1b}};
  for (const auto& [name, code] : kControls) {
    if (letter == name) return code;
  }
  const auto below_128 = [](char32_t code) {
    if (code >= 0x80) refuse("a byte above 7F; \\x{...} gives a code point");
    return code;
  };
  if (letter == 'b' && in_class) return 0x08;
  if (letter == 'x') return take("{") ? braced_number(16) : below_128(*number(16, 0, 2));
  if (letter == 'o' && take("{")) return braced_number(8);
  if (letter == 'u') {
    const std::optional<char32_t> code = number(16, 4, 4);
    if (!code || !is_character(*code)) refuse("\\u without four hex digits of a character");
    return code;
  }
  if (letter == 'c' || (letter == 'C' && take("-"))) {
    const char32_t control = next();
    if (control == '\\' || control >= 0x80) refuse("a control escape that is not supported");
    return control == '?' ? 0x7f : control & 0x1f;
  }
  if (letter == 'M' && starts_with("-")) refuse("\\M- is not supported");
  if (letter == '0' || (in_class && letter >= '1' && letter <= '7')) {
    const char32_t more = letter == '0' || in_class ? 2 : 0;
    char32_t code = letter - '0';
    for (char32_t i = 0; i < more && !at_end() && rest_[0] >= '0' && rest_[0] <= '7'; ++i)
      code = code * 8 + (next() - '0');
    return below_128(code);
  }
  return {};
}

// {name} or {^name}.
CodeSet RegexParser::property(bool negated) {
  const size_t end = rest_.find('}');
  if (end == rest_.npos) refuse("a property without its closing brace");
  std::string_view name = rest_.substr(0, end);
  rest_.remove_prefix(end + 1);
  if (name.starts_with('^')) {
    negated = !negated;
    name.remove_prefix(1);
  }
  const std::optional<CodeSet> set = code_points_of(name);
  if (!set) refuse(cat("the property {", shortened(name), "} is not known"));
  return negated ? set->inverted() : *set;
}

// Behind the backslash.
RegexParser::Escape RegexParser::class_escape(bool in_class) {
  const char32_t letter = next();
  const auto either = [&](char32_t of, const CodeSet& set) {
    return Escape{{}, letter == of ? set : set.inverted()};
  };
  switch (letter) {
    case 's':
    case 'S':
      return either('s', *code_points_of("space"));
    case 'd':
    case 'D':
      return either('d', *code_points_of("digit"));
    case 'h':
    case 'H':
      return either('h', *code_points_of("xdigit"));
    case 'w':
    case 'W':
      return either('w', in_class ? *code_points_of("word") : regex_word_set());
    case 'p':
    case 'P':
      if (take("{")) return {{}, property(letter == 'P')};
      break;
    case 'X':
    case 'k':
    case 'g':
      if (in_class) break;
      refuse(letter == 'X' ? "\\X is not supported"
                           : "back references and calls are not supported");
    default:
      break;
  }
  if (!in_class && letter >= '1' && letter <= '9') {
    const std::optional<char32_t> more = letter <= '3' ? number(8, 2, 2) : std::nullopt;
    if (!more) refuse("back references are not supported");
    const char32_t code = (letter - '0') * 64 + *more;
    if (code >= 0x80) refuse("a byte above 7F; \\x{...} gives a code point");
    return {code, {}};
  }
  return {character_escape(letter, in_class).value_or(letter), {}};
}

// [:name:] at the front, where it is one.
std::optional<CodeSet> RegexParser::posix_class() {
  constexpr std::string_view kNames[] = {"alnum", "alpha", "ascii", "blank", "cntrl",
                                         "digit", "graph", "lower", "print", "punct",
                                         "space", "upper", "word",  "xdigit"};
  if (!starts_with("[:")) return {};
  const size_t end = rest_.find(":]");
  if (end == rest_.npos || rest_.find(']') < end) return {};  // a class within
  std::string_view name = rest_.substr(2, end - 2);
  const bool negated = name.starts_with('^');
  if (negated) name.remove_prefix(1);
  if (std::ranges::find(kNames, name) == std::end(kNames))
    refuse(cat("the POSIX class [:", shortened(name), ":] is not known"));
  rest_.remove_prefix(end + 2);
  CodeSet set = *code_points_of(name);
  if (name == "punct") set = set.united(*code_points_of("S"));
  return negated ? set.inverted() : set;
}

CodeSet RegexParser::char_class(const Options& options, int depth) {
  bool negated = false;
  CodeSet set = class_members(depth, negated);
  if (options.ignore_case) {
    const auto folds_to_more = [&](const CodeRange& range) {
      // Letters that fold to more than one are few; ranges are not walked where none is near.
      for (char32_t code = range.first; code <= std::min(range.last, char32_t{0xfb17}); ++code) {
        if (case_folded(code).size() > 1) return true;
      }
      return false;
    };
    if (!negated && std::ranges::any_of(set.ranges(), folds_to_more))
      refuse("a class with a letter that folds to two is not supported under (?i)");
    set = with_case_variants(set);
  }
  return negated ? set.inverted() : set;
}

// Behind the opening bracket, up to behind the closing one, before the negation.
CodeSet RegexParser::class_members(int depth, bool& negated) {
  enum class State { Start, Value, Class, Range, Complete };
  if (depth > kMaxClassDepth) refuse("classes are nested too deep");
  negated = take("^");
  std::optional<CodeSet> left;  // of &&
  std::vector<CodeRange> members;
  State state = State::Start;
  char32_t value = 0;
  const auto add = [&](const CodeSet& set, State then) {
    if (state == State::Range) refuse("a class at the end of a range");
    charge(set);
    members.insert(members.end(), set.ranges().begin(), set.ranges().end());
    state = then;
  };
  const auto add_code = [&](char32_t code) {
    if (state == State::Range) {
      if (code < value) refuse("a range of characters that ends before it begins");
      members.push_back({value, code});
      state = State::Complete;
      return;
    }
    members.push_back({code, code});
    value = code;
    state = State::Value;
  };
  const auto intersect = [&] {
    CodeSet set(std::exchange(members, {}));
    left = left ? left->intersected(set) : std::move(set);
    charge(*left);
  };
  if (starts_with("]") && rest_.find(']', 1) != rest_.npos) add_code(next());
  if (starts_with("]") && state == State::Start) refuse("an empty character class");
  while (!take("]")) {
    if (at_end()) refuse("a character class is not closed");
    if (take("&&")) {
      intersect();
      state = State::Start;
    } else if (const std::optional<CodeSet> posix = posix_class()) {
      add(*posix, State::Class);
    } else if (take("[")) {
      bool inner_negated = false;
      const CodeSet inner = class_members(depth + 1, inner_negated);
      if (state == State::Range) refuse("a class at the end of a range");
      add(inner_negated ? inner.inverted() : inner, State::Complete);
    } else if (take("\\")) {
      const Escape escape = class_escape(true);
      escape.code ? add_code(*escape.code) : add(escape.set, State::Class);
    } else if (take("-")) {
      const bool is_last = starts_with("]") || starts_with("&&");
      if (state == State::Class && !is_last) refuse("a range that begins with a class");
      if (state == State::Value && !is_last)
        state = State::Range;
      else
        add_code('-');
    } else {
      add_code(next());
    }
  }
  if (state == State::Range) refuse("a range without its end");
  if (!left) return CodeSet(std::move(members));
  intersect();
  return *left;
}

}  // namespace minfer
