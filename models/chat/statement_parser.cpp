#include <algorithm>
#include <set>

#include "models/chat/parser.h"

namespace minfer::jinja {
namespace {

// A value for the life of this object.
template <typename T>
class With {
 public:
  With(T& place, T value) : place_(place), before_(place) { place_ = value; }
  ~With() { place_ = before_; }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

 private:
  T& place_;
  T before_;
};

}  // namespace

std::unique_ptr<Statement> Parser::new_statement(StatementKind kind) const {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = current().line;
  return statement;
}

Body Parser::parse_all() { return statements({}); }

Body Parser::statements(Names ends) {
  const Deeper deeper(depth_, kMaxNesting);
  Body body;
  while (current().type != TokenType::End) {
    if (current().type == TokenType::Data) {
      auto text = new_statement(StatementKind::Text);
      text->text = Value::text(nullptr, Text(take().text, true));
      body.push_back(std::move(text));
    } else if (current().type == TokenType::VariableBegin) {
      take();
      auto output = new_statement(StatementKind::Output);
      output->value = tuple({});
      expect_type(TokenType::VariableEnd);
      body.push_back(std::move(output));
    } else {
      expect_type(TokenType::BlockBegin);
      if (std::ranges::any_of(ends, [&](auto name) { return sees_name(name); })) return body;
      body.push_back(statement());
      expect_type(TokenType::BlockEnd);
    }
  }
  if (ends.size() > 0) fail(cat("the template ends, ", *ends.begin(), " is missing"));
  return body;
}

Body Parser::block(Names ends) {
  skip(":");
  expect_type(TokenType::BlockEnd);
  return statements(ends);
}

Body Parser::block_to(std::string_view end) {
  Body body = block({end});
  take();
  return body;
}

std::unique_ptr<Statement> Parser::statement() {
  if (current().type != TokenType::Name) fail("the name of a tag is missing");
  const std::string& name = current().text;
  if (name == "if") return if_();
  if (name == "for") return for_();
  if (name == "set") return set();
  if (name == "macro") return macro();
  if (name == "call") return call_block();
  if (name == "filter") return filter_block();
  if (name == "generation") return generation();
  if (name == "break") return loop_control(StatementKind::Break);
  if (name == "continue") return loop_control(StatementKind::Continue);
  fail(cat("the tag \"", shortened(name), "\" is not supported"));
}

std::unique_ptr<Statement> Parser::if_() {
  auto statement = new_statement(StatementKind::If);
  take();
  while (true) {
    Branch branch;
    branch.test = tuple({.with_condition = false});
    branch.body = block({"elif", "else", "endif"});
    statement->branches.push_back(std::move(branch));
    const std::string next = take().text;
    if (next == "elif") continue;
    if (next == "else") statement->branches.push_back({nullptr, block_to("endif")});
    return statement;
  }
}

std::unique_ptr<Statement> Parser::for_() {
  auto statement = new_statement(StatementKind::For);
  take();
  statement->target = target({.targets = true, .ends = {"in"}});
  if (!skip_name("in")) fail_unexpected();
  statement->value = tuple({.with_condition = false, .ends = {"recursive"}});
  if (skip_name("if")) statement->test = expression();
  if (sees_name("recursive")) fail("recursive loops are not supported");
  {
    const With loops(loops_, loops_ + 1);
    statement->body = block({"endfor", "else"});
  }
  if (take().text == "else") statement->otherwise = block_to("endfor");
  return statement;
}

std::unique_ptr<Statement> Parser::set() {
  auto statement = new_statement(StatementKind::Set);
  take();
  statement->target = target({.targets = true, .with_namespace = true});
  if (skip("=")) {
    statement->value = tuple({});
    return statement;
  }
  statement->kind = StatementKind::SetBlock;
  statement->value = filter(nullptr);
  statement->body = block_to("endset");
  return statement;
}

void Parser::parameters(MacroBody& macro) {
  expect("(");
  std::set<std::string> names;
  while (!sees(")")) {
    if (!macro.parameters.empty()) expect(",");
    Parameter parameter;
    parameter.name = expect_type(TokenType::Name).text;
    if (!names.insert(parameter.name).second)
      fail(cat("the parameter ", shortened(parameter.name), " comes twice"));
    if (skip("="))
      parameter.otherwise = expression();
    else if (!macro.parameters.empty() && macro.parameters.back().otherwise)
      fail("a parameter without a default follows one with a default");
    macro.parameters.push_back(std::move(parameter));
  }
  expect(")");
}

std::unique_ptr<Statement> Parser::macro() {
  auto statement = new_statement(StatementKind::Macro);
  take();
  statement->macro = std::make_unique<MacroBody>();
  statement->macro->name = expect_type(TokenType::Name).text;
  parameters(*statement->macro);
  const With loops(loops_, 0);
  statement->body = block_to("endmacro");
  return statement;
}

std::unique_ptr<Statement> Parser::call_block() {
  auto statement = new_statement(StatementKind::CallBlock);
  take();
  statement->macro = std::make_unique<MacroBody>();
  if (sees("(")) parameters(*statement->macro);
  statement->value = expression();
  if (statement->value->kind != ExprKind::Call) fail("a call is expected");
  const With loops(loops_, 0);
  statement->body = block_to("endcall");
  return statement;
}

std::unique_ptr<Statement> Parser::filter_block() {
  auto statement = new_statement(StatementKind::FilterBlock);
  take();
  statement->value = filter(nullptr, true);
  statement->body = block_to("endfilter");
  return statement;
}

// Transformers' own tag: what the assistant says. Its body is a function, as in a call block.
std::unique_ptr<Statement> Parser::generation() {
  auto statement = new_statement(StatementKind::Generation);
  take();
  statement->macro = std::make_unique<MacroBody>();
  const With loops(loops_, 0);
  statement->body = block_to("endgeneration");
  return statement;
}

std::unique_ptr<Statement> Parser::loop_control(StatementKind kind) {
  auto statement = new_statement(kind);
  const std::string name = take().text;
  if (loops_ == 0) fail_at(statement->line, cat(name, " stands outside of a loop"));
  return statement;
}

}  // namespace minfer::jinja
