#include "models/chat/lexer.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/chat/text.h"

namespace minfer::jinja {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Jinja reads every line end as \n and drops the last one.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '\r') {
      out += source[at];
      continue;
    }
    out += '\n';
    if (source.substr(at + 1).starts_with('\n')) ++at;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// The value of a string literal's inside, by the rules of Python's "unicode-escape".
class Unescaper {
 public:
  Unescaper(std::string_view text, int line) : text_(text), line_(line) {}

  std::string all() {
    while (at_ < text_.size()) {
      if (text_[at_] != '\\')
        out_ += text_[at_++];
      else
        escape();
    }
    return std::move(out_);
  }

 private:
  void escape() {
    constexpr std::string_view kLetters = "ntr\\'\"abfv", kMeanings = "\n\t\r\\'\"\a\b\f\v";
    const char letter = text_[++at_];  // there is one: the lexer has seen to it
    ++at_;
    if (letter == '\n') return;
    if (const size_t i = kLetters.find(letter); i != kLetters.npos) {
      out_ += kMeanings[i];
    } else if (letter >= '0' && letter <= '7') {
      --at_;
      append_utf8(number(8, 1, 3), out_);
    } else if (letter == 'x') {
      append_utf8(number(16, 2, 2), out_);
    } else if (letter == 'u' || letter == 'U') {
      const size_t n = letter == 'u' ? 4 : 8;
      const char32_t code = number(16, n, n);
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        fail_at(line_, "a string escapes what is no character");
      append_utf8(code, out_);
    } else if (letter == 'N') {
      fail_at(line_, "\\N{...} in a string is not supported");
    } else {
      out_ += '\\';
      out_ += letter;
    }
  }

  char32_t number(char32_t base, size_t at_least, size_t at_most) {
    char32_t value = 0;
    size_t n = 0;
    for (; n < at_most && at_ < text_.size(); ++n, ++at_) {
      const char c = text_[at_];
      const int digit = is_digit(c)              ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      if (digit >= static_cast<int>(base)) break;
      value = value * base + static_cast<char32_t>(digit);
    }
    if (n < at_least) fail_at(line_, "a string has an escape that is cut short");
    return value;
  }

  std::string_view text_;
  int line_;
  size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> all() {
    while (at_ < source_.size()) read_data();
    emit(TokenType::End, "");
    return std::move(tokens_);
  }

 private:
  bool sees(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void emit(TokenType type, std::string text) { tokens_.push_back({type, line_, std::move(text)}); }
  // Moves on to `at`, counting lines.
  void advance(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    if (at > at_) line_starts_ = source_[at - 1] == '\n';
    at_ = at;
  }

  // Text up to the next tag, and the tag.
  void read_data() {
    size_t tag = source_.find('{', at_);
    const auto opens = [](char c) { return c == '{' || c == '%' || c == '#'; };
    while (tag != source_.npos && !(tag + 1 < source_.size() && opens(source_[tag + 1])))
      tag = source_.find('{', tag + 1);
    tag = std::min(tag, source_.size());
    if (tag == source_.size()) {
      emit_data(std::string_view(source_).substr(at_));
      return advance(tag);
    }
    const size_t sign_at = tag + 2;
    const char sign = sign_at < source_.size() ? source_[sign_at] : ' ';
    emit_data(stripped(std::string_view(source_).substr(at_, tag - at_), source_[tag + 1], sign));
    advance(tag);
    const char type = source_[at_ + 1];
    const size_t behind = sign_at + (sign == '-' || sign == '+' ? 1 : 0);
    if (type == '#') return skip_comment(behind);
    if (type == '%' && read_raw(behind)) return;
    emit(type == '%' ? TokenType::BlockBegin : TokenType::VariableBegin, "");
    advance(behind);
    line_starts_ = false;
    read_code(type == '%');
  }

  void emit_data(std::string_view text) {
    if (!text.empty()) emit(TokenType::Data, std::string(text));
  }

  // The text in front of a tag, without the white space that the tag takes.
  std::string_view stripped(std::string_view text, char type, char sign) const {
    if (sign == '-') return text.substr(0, skip_space_back(text, text.size()));
    if (sign == '+' || type == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 where there is none
    if (line == 0 && !line_starts_) return text;
    return skip_space(text, line) == text.size() ? text.substr(0, line) : text;
  }

  // The position behind the end of a tag ("%}", "-%}", "+%}") that begins at `at`, with the white
  // space that it takes; 0 where there is none.
  size_t behind_end(size_t at, std::string_view close) const {
    const std::string_view rest = std::string_view(source_).substr(at);
    const bool variable = close == "}}";
    const bool minus = rest.starts_with('-'), plus = rest.starts_with('+') && !variable;
    const size_t sign = minus || plus ? 1 : 0;
    if (!rest.substr(sign).starts_with(close)) return 0;
    at += sign + 2;
    if (minus) return skip_space(source_, at);
    if (!plus && !variable && at < source_.size() && source_[at] == '\n') ++at;
    return at;
  }

  void skip_comment(size_t at) {
    const int begun = line_;
    // "-" and "+" belong to the end where they stand in front of it.
    for (; at < source_.size(); ++at) {
      if (const size_t behind = behind_end(at, "#}"); behind != 0) return advance(behind);
    }
    fail_at(begun, "a comment does not end");
  }

  // A raw block whole, if one begins here.
  bool read_raw(size_t at) {
    at = skip_space(source_, at);
    const std::string_view all = source_;
    if (!all.substr(at).starts_with("raw")) return false;
    at = skip_space(source_, at + 3);
    if (all.substr(at).starts_with("%}"))
      at += 2;
    else if (all.substr(at).starts_with("-%}"))
      at = skip_space(source_, at + 3);
    else
      return false;
    const int begun = line_;
    advance(at);
    line_starts_ = false;
    for (size_t tag = all.find("{%", at); tag != all.npos; tag = all.find("{%", tag + 2)) {
      const char sign = tag + 2 < all.size() ? all[tag + 2] : ' ';
      size_t end = skip_space(all, tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (!all.substr(end).starts_with("endraw")) continue;
      end = behind_end(skip_space(all, end + 6), "%}");
      if (end == 0) continue;
      line_starts_ = all[at - 1] == '\n';
      emit_data(stripped(all.substr(at, tag - at), '%', sign));
      advance(end);
      return true;
    }
    fail_at(begun, "a raw block does not end");
  }

  // The tokens of a tag to its end.
  void read_code(bool block) {
    const int begun = line_;
    const std::string_view close = block ? "%}" : "}}";
    open_.clear();
    while (at_ < source_.size()) {
      if (open_.empty()) {
        if (const size_t behind = behind_end(at_, close); behind != 0) {
          emit(block ? TokenType::BlockEnd : TokenType::VariableEnd, "");
          return advance(behind);
        }
      }
      read_token();
    }
    emit(TokenType::End, "");
    if (!open_.empty()) fail_at(begun, "a tag does not end");
  }

  void read_token() {
    const char c = source_[at_];
    if (const size_t behind = skip_space(source_, at_); behind > at_) return advance(behind);
    if (is_digit(c)) return read_number();
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && is_name_part(source_[end])) ++end;
      require_ascii(end);
      emit(TokenType::Name, source_.substr(at_, end - at_));
      return advance(end);
    }
    if (c == '\'' || c == '"') return read_string(c);
    read_operator();
  }

  void require_ascii(size_t at) const {
    if (at < source_.size() && (source_[at] & '\x80') != 0)
      fail_at(line_, "names that are not ASCII are not supported");
  }

  void read_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at(line_, "a string does not end");
    const std::string_view inside = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    emit(TokenType::String, Unescaper(inside, line_).all());
    advance(end + 1);
  }

  // The end of digits with single underscores between, from `at`; `at` where there is none.
  template <typename IsDigit>
  size_t digits_end(size_t at, const IsDigit& digit) const {
    const auto sees_digit = [&](size_t i) { return i < source_.size() && digit(source_[i]); };
    if (!sees_digit(at)) return at;
    while (sees_digit(at) || (source_[at] == '_' && sees_digit(at + 1))) {
      ++at;
      if (at >= source_.size()) break;
    }
    return at;
  }

  size_t float_end(size_t whole_end) const {
    size_t end = whole_end;
    if (end < source_.size() && source_[end] == '.') {
      const size_t fraction = digits_end(end + 1, is_digit);
      if (fraction > end + 1) end = fraction;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      const size_t last = digits_end(exponent, is_digit);
      if (last > exponent) end = last;
    }
    return end;
  }

  void read_number() {
    const bool behind_dot = at_ > 0 && source_[at_ - 1] == '.';
    const size_t whole_end = digits_end(at_, is_digit);
    if (const size_t end = float_end(whole_end); end > whole_end && !behind_dot)
      return emit_number(TokenType::Float, end);
    const char letter = at_ + 1 < source_.size() ? source_[at_ + 1] : ' ';
    if (source_[at_] == '0' && std::string_view("bBoOxX").find(letter) < 6)
      fail_at(line_, "integers that are not decimal are not supported");
    size_t end = whole_end;
    if (source_[at_] == '0') end = digits_end(at_, [](char c) { return c == '0'; });
    emit_number(TokenType::Integer, end);
  }

  void emit_number(TokenType type, size_t end) {
    require_ascii(end);
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    emit(type, std::move(text));
    advance(end);
  }

  void read_operator() {
    constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!sees(op)) continue;
      balance(op[0]);
      emit(TokenType::Operator, std::string(op));
      return advance(at_ + op.size());
    }
    require_ascii(at_);
    fail_at(line_, cat("unexpected character ", shortened(source_.substr(at_, 1))));
  }

  void balance(char c) {
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const size_t i = kOpen.find(c); i != kOpen.npos) open_ += kClose[i];
    if (kClose.find(c) == kClose.npos) return;
    if (open_.empty() || open_.back() != c) fail_at(line_, cat("unexpected '", c, "'"));
    open_.pop_back();
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::string open_;  // the closing brackets that are due
  std::vector<Token> tokens_;
};

}  // namespace

void fail_at(int line, const std::string& message) {
  throw Error(ErrorKind::Input, cat("chat template, line ", line, ": ", message));
}

std::vector<Token> tokenize(std::string_view source) {
  MINFER_REQUIRE(Input, is_utf8(source), "the chat template is not UTF-8");
  return Lexer(with_plain_newlines(source)).all();
}

}  // namespace minfer::jinja
