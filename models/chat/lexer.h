#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minfer::jinja {

enum class TokenType {
  Data,  // text between tags
  BlockBegin,
  BlockEnd,
  VariableBegin,
  VariableEnd,
  Name,
  String,
  Integer,
  Float,
  Operator,
  End,
};

struct Token {
  TokenType type = TokenType::End;
  int line = 0;
  std::string text;  // of a String: with its escapes resolved
};

// Splits a template as Jinja does with trim_blocks and lstrip_blocks: white space control is
// applied, comments are dropped, raw blocks become Data. Throws Input, with the line.
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void fail_at(int line, const std::string& message);

}  // namespace minfer::jinja
