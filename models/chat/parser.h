#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat/ast.h"
#include "models/chat/lexer.h"

namespace minfer::jinja {

// The grammar of expressions (expression_parser.cpp) and of tags (statement_parser.cpp), as Jinja
// has it.
class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}
  Body parse_all();

 private:
  using Names = std::initializer_list<std::string_view>;

  // ---- tokens ----
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool sees(std::string_view op) const {
    return current().type == TokenType::Operator && current().text == op;
  }
  bool sees_name(std::string_view name) const {
    return current().type == TokenType::Name && current().text == name;
  }
  bool skip(std::string_view op);
  bool skip_name(std::string_view name);
  void expect(std::string_view op);
  const Token& expect_type(TokenType type);
  [[noreturn]] void fail(const std::string& message) const { fail_at(current().line, message); }
  [[noreturn]] void fail_unexpected() const;

  // ---- expressions ----
  ExprPtr expression(bool with_condition = true);
  ExprPtr condition();
  ExprPtr or_();
  ExprPtr and_();
  ExprPtr not_();
  ExprPtr compare();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter = true);
  ExprPtr primary(bool with_namespace = false);
  ExprPtr name_or_constant(bool with_namespace);
  ExprPtr postfix(ExprPtr value);
  ExprPtr filter_expression(ExprPtr value);
  ExprPtr subscript(ExprPtr value);
  ExprPtr filter(ExprPtr value, bool at_name = false);
  ExprPtr test(ExprPtr value);
  ExprPtr call(ExprPtr callee);
  std::unique_ptr<Arguments> arguments();
  ExprPtr list();
  ExprPtr dict();
  struct TupleOptions {
    bool with_condition = true, targets = false, with_namespace = false, in_parentheses = false;
    Names ends = {};
  };
  ExprPtr tuple(const TupleOptions& options);
  bool at_tuple_end(Names ends) const;
  ExprPtr target(const TupleOptions& options);

  // ---- tags ----
  Body statements(Names ends);  // up to a tag with one of these names, which is then current()
  Body block(Names ends);       // takes the end of this tag, then statements
  Body block_to(std::string_view end);  // the same, then takes the name `end`
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> if_();
  std::unique_ptr<Statement> for_();
  std::unique_ptr<Statement> set();
  std::unique_ptr<Statement> macro();
  std::unique_ptr<Statement> call_block();
  std::unique_ptr<Statement> filter_block();
  std::unique_ptr<Statement> generation();
  std::unique_ptr<Statement> loop_control(StatementKind kind);
  void parameters(MacroBody& macro);

  std::unique_ptr<Statement> new_statement(StatementKind kind) const;
  ExprPtr new_expr(ExprKind kind, int line) const;
  // Adds an operand; throws if expressions nest too deep.
  void add(Expr& expr, ExprPtr operand) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;  // of expressions and tags that are being parsed
  int loops_ = 0;  // around the current tag, in the same function
};

}  // namespace minfer::jinja
