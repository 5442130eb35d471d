#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/chat/value.h"

// A parsed template. Names are resolved to slots of the functions that hold them, as Jinja's own
// compiler does (scopes.cpp).
namespace minfer::jinja {

enum class ExprKind : uint8_t {
  Constant,
  Name,
  List,
  Tuple,
  Dict,  // operands: key, value, key, value
  Negate,
  Plus,
  Not,
  And,
  Or,
  Binary,     // name: + - * / // % **
  Concat,     // ~
  Compare,    // operands with operators between them: == != < <= > >= in notin
  Condition,  // operands: then, test, and maybe else
  Attribute,  // .name
  Item,       // [operand]
  Slice,      // operands: value, start, stop, step; null where left out
  Call,
  Filter,  // a null operand is the text of the block that is filtered
  Test,
  NamespaceTarget,  // name.attribute as a target of set
};

// Where a variable lives: `hops` functions outwards, in slot `index`.
struct Slot {
  int hops = 0, index = -1;
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr rest, rest_keywords;  // *rest, **rest_keywords
};

struct Expr {
  ExprKind kind = ExprKind::Constant;
  int line = 0;
  int nesting = 1;
  Value constant;
  std::string name;
  std::string attribute;  // of a NamespaceTarget
  std::vector<ExprPtr> operands;
  std::vector<std::string> operators;
  std::unique_ptr<Arguments> arguments;
  Slot slot;
  bool parameter = false;  // a Name that Jinja assumes to be set
};

// Where a slot gets its value from when its scope is entered.
struct Load {
  enum class From : uint8_t { Nothing, Context, Outer } from = From::Nothing;
  int index = -1;
  std::string name;  // in the context
  Slot outer;
};
struct Scope {
  std::vector<Load> loads;
  std::vector<int> slots;  // emptied when the scope is left
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct FunctionBody {  // of the template, a macro, a call block or a loop's test
  int n_slots = 0;
  bool keeps_slots = false;  // functions defined in it may outlive it
};

struct Parameter {
  std::string name;
  int index = -1;
  ExprPtr otherwise;  // the default; null: none
};

struct MacroBody {
  std::string name;  // empty for a call block
  std::vector<Parameter> parameters;
  int caller = -1, kwargs = -1, varargs = -1;  // slots; -1: the body does not use it
  Scope scope;
  FunctionBody function;
  Body* body = nullptr;
};

enum class StatementKind : uint8_t {
  Text,
  Output,  // value
  If,      // branches in turn
  For,
  Set,
  SetBlock,
  Macro,
  CallBlock,
  FilterBlock,
  Generation,
  Break,
  Continue,
};

struct Branch {
  ExprPtr test;  // null: else
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::Text;
  int line = 0;
  Value text;
  ExprPtr target, value;  // For: target in value; Set: target = value; blocks: the filter or call
  std::vector<Branch> branches;
  Body body, otherwise;
  Scope scope, else_scope;

  // For
  ExprPtr test, test_target;
  Scope test_scope;
  FunctionBody test_function;
  int loop_slot = -1;  // of the variable `loop`; -1: the body does not use it

  // Macro and call block
  std::unique_ptr<MacroBody> macro;
  Slot macro_slot;
};

struct TemplateTree {
  Body body;
  Scope scope;
  FunctionBody function;
};

// Gives every name its slot. Throws Input, with the line.
void resolve_scopes(TemplateTree& tree);

// Whether there is a filter or test of this name.
bool is_known_filter(const std::string& name);
bool is_known_test(const std::string& name);

}  // namespace minfer::jinja
