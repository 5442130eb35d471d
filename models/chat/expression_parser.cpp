#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "models/chat/parser.h"

namespace minfer::jinja {
namespace {

Value number_of(const Token& token) {
  const char *begin = token.text.data(), *end = begin + token.text.size();
  if (token.type == TokenType::Float) {
    double value = 0;
    const auto [stop, fault] = std::from_chars(begin, end, value);
    if (fault == std::errc::result_out_of_range) fail_at(token.line, "a number is out of range");
    return Value::number(value);
  }
  int64_t value = 0;
  const auto [stop, fault] = std::from_chars(begin, end, value);
  if (fault != std::errc())
    fail_at(token.line, cat("integers past ", kMaxIntegerBits, " bits are not supported"));
  return Value::integer(value);
}

}  // namespace

bool Parser::skip(std::string_view op) {
  if (!sees(op)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!sees_name(name)) return false;
  take();
  return true;
}

void Parser::expect(std::string_view op) {
  if (!skip(op)) fail_unexpected();
}

const Token& Parser::expect_type(TokenType type) {
  if (current().type != type) fail_unexpected();
  return take();
}

void Parser::fail_unexpected() const {
  switch (current().type) {
    case TokenType::End:
      fail("the template ends inside of a tag or block");
    case TokenType::BlockEnd:
    case TokenType::VariableEnd:
      fail("unexpected end of a tag");
    case TokenType::String:
      fail("unexpected string");
    default:
      fail(cat("unexpected '", shortened(current().text), "'"));
  }
}

ExprPtr Parser::new_expr(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void Parser::add(Expr& expr, ExprPtr operand) const {
  if (operand) {
    expr.nesting = std::max(expr.nesting, operand->nesting + 1);
    if (expr.nesting > kMaxNesting)
      fail_at(expr.line, cat("expressions nest deeper than ", kMaxNesting, " levels"));
  }
  expr.operands.push_back(std::move(operand));
}

ExprPtr Parser::expression(bool with_condition) { return with_condition ? condition() : or_(); }

ExprPtr Parser::condition() {
  ExprPtr value = or_();
  while (sees_name("if")) {
    ExprPtr expr = new_expr(ExprKind::Condition, take().line);
    add(*expr, std::move(value));
    add(*expr, or_());
    if (skip_name("else")) {
      const Deeper deeper(depth_, kMaxNesting);
      add(*expr, condition());
    }
    value = std::move(expr);
  }
  return value;
}

ExprPtr Parser::or_() {
  ExprPtr left = and_();
  while (sees_name("or")) {
    ExprPtr expr = new_expr(ExprKind::Or, take().line);
    add(*expr, std::move(left));
    add(*expr, and_());
    left = std::move(expr);
  }
  return left;
}

ExprPtr Parser::and_() {
  ExprPtr left = not_();
  while (sees_name("and")) {
    ExprPtr expr = new_expr(ExprKind::And, take().line);
    add(*expr, std::move(left));
    add(*expr, not_());
    left = std::move(expr);
  }
  return left;
}

ExprPtr Parser::not_() {
  if (!sees_name("not")) return compare();
  const Deeper deeper(depth_, kMaxNesting);
  ExprPtr expr = new_expr(ExprKind::Not, take().line);
  add(*expr, not_());
  return expr;
}

ExprPtr Parser::compare() {
  ExprPtr left = sum();
  ExprPtr expr = new_expr(ExprKind::Compare, current().line);
  while (true) {
    std::string op;
    for (const char* known : {"==", "!=", "<", "<=", ">", ">="})
      if (sees(known)) op = known;
    if (sees_name("in")) op = "in";
    const bool not_in = sees_name("not") && ahead().type == TokenType::Name && ahead().text == "in";
    if (not_in) op = "notin";
    if (op.empty()) break;
    take();
    if (not_in) take();
    if (expr->operands.empty()) add(*expr, std::move(left));
    expr->operators.push_back(op);
    add(*expr, sum());
  }
  return expr->operands.empty() ? std::move(left) : std::move(expr);
}

ExprPtr Parser::sum() {
  ExprPtr left = concat();
  while (sees("+") || sees("-")) {
    const Token& op = take();
    ExprPtr expr = new_expr(ExprKind::Binary, op.line);
    expr->name = op.text;
    add(*expr, std::move(left));
    add(*expr, concat());
    left = std::move(expr);
  }
  return left;
}

ExprPtr Parser::concat() {
  ExprPtr first = product();
  if (!sees("~")) return first;
  ExprPtr expr = new_expr(ExprKind::Concat, current().line);
  add(*expr, std::move(first));
  while (skip("~")) add(*expr, product());
  return expr;
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (sees("*") || sees("/") || sees("//") || sees("%")) {
    const Token& op = take();
    ExprPtr expr = new_expr(ExprKind::Binary, op.line);
    expr->name = op.text;
    add(*expr, std::move(left));
    add(*expr, power());
    left = std::move(expr);
  }
  return left;
}

ExprPtr Parser::power() {
  ExprPtr left = unary();
  while (sees("**")) {
    ExprPtr expr = new_expr(ExprKind::Binary, take().line);
    expr->name = "**";
    add(*expr, std::move(left));
    add(*expr, unary());
    left = std::move(expr);
  }
  return left;
}

ExprPtr Parser::unary(bool with_filter) {
  const Deeper deeper(depth_, kMaxNesting);
  ExprPtr value;
  if (sees("-") || sees("+")) {
    const Token& op = take();
    value = new_expr(op.text == "-" ? ExprKind::Negate : ExprKind::Plus, op.line);
    add(*value, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filter_expression(std::move(value)) : std::move(value);
}

ExprPtr Parser::name_or_constant(bool with_namespace) {
  const Token& token = take();
  ExprPtr expr = new_expr(ExprKind::Constant, token.line);
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->constant = Value::boolean(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr->constant = Value::none();
  } else {
    expr->kind = ExprKind::Name;
    expr->name = name;
    if (with_namespace && skip(".")) {
      expr->kind = ExprKind::NamespaceTarget;
      expr->attribute = expect_type(TokenType::Name).text;
    }
  }
  return expr;
}

ExprPtr Parser::primary(bool with_namespace) {
  const Token& token = current();
  switch (token.type) {
    case TokenType::Name:
      return name_or_constant(with_namespace);
    case TokenType::String: {
      ExprPtr expr = new_expr(ExprKind::Constant, token.line);
      std::string text;
      while (current().type == TokenType::String) text += take().text;
      expr->constant = Value::text(nullptr, Text(std::move(text), true));
      return expr;
    }
    case TokenType::Integer:
    case TokenType::Float: {
      ExprPtr expr = new_expr(ExprKind::Constant, token.line);
      expr->constant = number_of(take());
      return expr;
    }
    default:
      break;
  }
  if (sees("[")) return list();
  if (sees("{")) return dict();
  expect("(");
  ExprPtr expr = tuple({.in_parentheses = true});
  expect(")");
  return expr;
}

bool Parser::at_tuple_end(Names ends) const {
  if (current().type == TokenType::VariableEnd || current().type == TokenType::BlockEnd) return true;
  return sees(")") || std::ranges::any_of(ends, [&](auto name) { return sees_name(name); });
}

ExprPtr Parser::tuple(const TupleOptions& options) {
  ExprPtr all = new_expr(ExprKind::Tuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!all->operands.empty()) expect(",");
    if (at_tuple_end(options.ends)) break;
    add(*all, options.targets ? primary(options.with_namespace)
                              : expression(options.with_condition));
    if (!sees(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return all;
  if (!all->operands.empty()) return std::move(all->operands[0]);
  if (!options.in_parentheses) fail("an expression is missing");
  return all;
}

// Names, tuples of names, and attributes of namespaces.
ExprPtr Parser::target(const TupleOptions& options) {
  const int line = current().line;
  ExprPtr expr = tuple(options);
  const auto check = [&](const auto& self, const Expr& part) -> void {
    const bool tuple_of = part.kind == ExprKind::Tuple;
    if (part.kind != ExprKind::Name && part.kind != ExprKind::NamespaceTarget && !tuple_of)
      fail_at(line, "can't assign to this");
    for (const ExprPtr& operand : part.operands) self(self, *operand);
  };
  check(check, *expr);
  return expr;
}

ExprPtr Parser::list() {
  ExprPtr expr = new_expr(ExprKind::List, take().line);
  while (!sees("]")) {
    if (!expr->operands.empty()) expect(",");
    if (sees("]")) break;
    add(*expr, expression());
  }
  expect("]");
  return expr;
}

ExprPtr Parser::dict() {
  ExprPtr expr = new_expr(ExprKind::Dict, take().line);
  while (!sees("}")) {
    if (!expr->operands.empty()) expect(",");
    if (sees("}")) break;
    add(*expr, expression());
    expect(":");
    add(*expr, expression());
  }
  expect("}");
  return expr;
}

ExprPtr Parser::postfix(ExprPtr value) {
  while (true) {
    if (sees(".") || sees("["))
      value = subscript(std::move(value));
    else if (sees("("))
      value = call(std::move(value));
    else
      return value;
  }
}

ExprPtr Parser::filter_expression(ExprPtr value) {
  while (true) {
    if (sees("|"))
      value = filter(std::move(value));
    else if (sees_name("is"))
      value = test(std::move(value));
    else if (sees("("))
      value = call(std::move(value));
    else
      return value;
  }
}

ExprPtr Parser::subscript(ExprPtr value) {
  const int line = current().line;
  if (skip(".")) {
    if (current().type == TokenType::Name) {
      ExprPtr expr = new_expr(ExprKind::Attribute, line);
      expr->name = take().text;
      add(*expr, std::move(value));
      return expr;
    }
    ExprPtr expr = new_expr(ExprKind::Item, line);
    add(*expr, std::move(value));
    ExprPtr index = new_expr(ExprKind::Constant, line);
    index->constant = number_of(expect_type(TokenType::Integer));
    add(*expr, std::move(index));
    return expr;
  }
  expect("[");
  ExprPtr expr = new_expr(ExprKind::Item, line);
  add(*expr, std::move(value));
  if (sees("]")) fail("an index is missing");
  ExprPtr start;
  if (!sees(":")) start = expression();
  if (skip(":")) {
    expr->kind = ExprKind::Slice;
    add(*expr, std::move(start));
    add(*expr, sees(":") || sees("]") ? nullptr : expression());
    const bool stepped = skip(":") && !sees("]");
    add(*expr, stepped ? expression() : nullptr);
  } else {
    add(*expr, std::move(start));
  }
  if (sees(",")) fail("an index of more than one part is not supported");
  expect("]");
  return expr;
}

std::unique_ptr<Arguments> Parser::arguments() {
  const int line = current().line;
  expect("(");
  auto all = std::make_unique<Arguments>();
  const auto require = [&](bool ok) {
    if (!ok) fail_at(line, "invalid syntax for a call");
  };
  std::set<std::string> names;
  bool first = true;
  while (!sees(")")) {
    if (!first) expect(",");
    if (!first && sees(")")) break;
    first = false;
    if (skip("*")) {
      require(!all->rest && !all->rest_keywords);
      all->rest = expression();
    } else if (skip("**")) {
      require(!all->rest_keywords);
      all->rest_keywords = expression();
    } else if (current().type == TokenType::Name && ahead().type == TokenType::Operator &&
               ahead().text == "=") {
      require(!all->rest_keywords);
      const std::string name = take().text;
      require(names.insert(name).second);
      take();
      all->keywords.emplace_back(name, expression());
    } else {
      require(!all->rest && !all->rest_keywords && all->keywords.empty());
      all->positional.push_back(expression());
    }
  }
  expect(")");
  return all;
}

namespace {
int nesting_of(const Arguments& arguments) {
  int deepest = 0;
  const auto see = [&](const ExprPtr& expr) {
    if (expr) deepest = std::max(deepest, expr->nesting);
  };
  for (const ExprPtr& expr : arguments.positional) see(expr);
  for (const auto& [name, expr] : arguments.keywords) see(expr);
  see(arguments.rest);
  see(arguments.rest_keywords);
  return deepest;
}
}  // namespace

ExprPtr Parser::call(ExprPtr callee) {
  ExprPtr expr = new_expr(ExprKind::Call, current().line);
  expr->arguments = arguments();
  expr->nesting = nesting_of(*expr->arguments) + 1;
  add(*expr, std::move(callee));
  return expr;
}

ExprPtr Parser::filter(ExprPtr value, bool at_name) {
  while (at_name || sees("|")) {
    if (!at_name) take();
    at_name = false;
    const Token& token = expect_type(TokenType::Name);
    ExprPtr expr = new_expr(ExprKind::Filter, token.line);
    expr->name = token.text;
    while (skip(".")) expr->name += "." + expect_type(TokenType::Name).text;
    expr->arguments = sees("(") ? arguments() : std::make_unique<Arguments>();
    expr->nesting = nesting_of(*expr->arguments) + 1;
    add(*expr, std::move(value));
    value = std::move(expr);
  }
  return value;
}

ExprPtr Parser::test(ExprPtr value) {
  ExprPtr expr = new_expr(ExprKind::Test, take().line);
  const bool negated = skip_name("not");
  expr->name = expect_type(TokenType::Name).text;
  while (skip(".")) expr->name += "." + expect_type(TokenType::Name).text;
  const TokenType next = current().type;
  const bool literal = next == TokenType::Name || next == TokenType::String ||
                       next == TokenType::Integer || next == TokenType::Float || sees("[") ||
                       sees("{");
  const bool ends = sees_name("else") || sees_name("or") || sees_name("and");
  if (sees("(")) {
    expr->arguments = arguments();
  } else {
    expr->arguments = std::make_unique<Arguments>();
    if (literal && !ends) {
      if (sees_name("is")) fail("tests cannot be chained with is");
      expr->arguments->positional.push_back(postfix(primary()));
    }
  }
  expr->nesting = nesting_of(*expr->arguments) + 1;
  add(*expr, std::move(value));
  if (!negated) return expr;
  ExprPtr outer = new_expr(ExprKind::Not, expr->line);
  add(*outer, std::move(expr));
  return outer;
}

}  // namespace minfer::jinja
