#include <algorithm>
#include <map>
#include <set>

#include "models/chat/ast.h"
#include "models/chat/lexer.h"

// Which variable a name means. Jinja decides this before a template runs: each scope (a loop's
// body, a macro, a block) has variables of its own for what it sets, which begin as copies of the
// outer ones; what is nowhere set comes from the context.
namespace minfer::jinja {
namespace {

struct Function {
  Function* outer = nullptr;
  FunctionBody* body = nullptr;
  std::map<std::pair<int, std::string>, int> slots;  // by level of the scope, and name

  int slot(int level, const std::string& name) {
    const auto [at, is_new] = slots.try_emplace({level, name}, body->n_slots);
    if (is_new) ++body->n_slots;
    return at->second;
  }
};

struct Variable {
  Function* function = nullptr;
  int index = -1;
  bool parameter = false;
};

Slot slot_from(const Function* user, const Variable& variable) {
  Slot slot{0, variable.index};
  for (; user != variable.function; user = user->outer) ++slot.hops;
  return slot;
}

// Branches copy what is known before them, so that a large template could take quadratic time.
constexpr int64_t kMaxScopeWork = 20'000'000;

struct Symbols {
  int64_t* work;
  Function* function;
  Symbols* outer;
  int level;
  std::map<std::string, Variable> variables;
  std::vector<Load> loads;  // by index, one each
  std::set<std::string> stores, parameters;

  const Variable* find(const std::string& name) const {
    for (const Symbols* at = this; at != nullptr; at = at->outer) {
      if (const auto found = at->variables.find(name); found != at->variables.end())
        return &found->second;
    }
    return nullptr;
  }
  int define(const std::string& name) {
    const int index = function->slot(level, name);
    variables[name] = {function, index};
    return index;
  }
  void take_work(size_t n) const {
    *work += static_cast<int64_t>(n);
    MINFER_REQUIRE(Input, *work <= kMaxScopeWork, "the chat template has too many variables");
  }
  void set_load(Load load) {
    take_work(loads.size());
    std::erase_if(loads, [&](const Load& other) { return other.index == load.index; });
    loads.push_back(std::move(load));
  }
  void parameter(const std::string& name) {
    stores.insert(name);
    parameters.insert(name);
    const int index = define(name);
    variables[name].parameter = true;
    std::erase_if(loads, [&](const Load& load) { return load.index == index; });
  }
  void load(const std::string& name) {
    if (find(name) == nullptr) set_load({Load::From::Context, define(name), name, {}});
  }
  // The outer scope's variable, if it has one.
  Load load_of_outer(int index, const std::string& name, Load::From otherwise) const {
    const Variable* known = outer != nullptr ? outer->find(name) : nullptr;
    if (known == nullptr) return {otherwise, index, name, {}};
    return {Load::From::Outer, index, name, slot_from(function, *known)};
  }
  void store(const std::string& name) {
    stores.insert(name);
    if (variables.contains(name)) return;
    const Load load = load_of_outer(-1, name, Load::From::Nothing);
    set_load(load);
    loads.back().index = define(name);
  }
  // Takes over what the branches of an if have found.
  void join(const std::vector<Symbols>& branches) {
    std::set<std::string> stored;
    for (const Symbols& branch : branches) {
      for (const std::string& name : branch.stores)
        if (!stores.contains(name)) stored.insert(name);
    }
    for (const Symbols& branch : branches) {
      variables.insert(branch.variables.begin(), branch.variables.end());
      for (const Load& load : branch.loads) set_load(load);
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : stored)
      set_load(load_of_outer(find(name)->index, name, Load::From::Context));
  }
};

// ---- walks over names ----

template <typename Visit>
void walk_names(const Expr& expr, const Visit& visit) {
  if (expr.kind == ExprKind::Name || expr.kind == ExprKind::NamespaceTarget) visit(expr);
  for (const ExprPtr& operand : expr.operands)
    if (operand) walk_names(*operand, visit);
  if (!expr.arguments) return;
  for (const ExprPtr& argument : expr.arguments->positional) walk_names(*argument, visit);
  for (const auto& [name, argument] : expr.arguments->keywords) walk_names(*argument, visit);
  if (expr.arguments->rest) walk_names(*expr.arguments->rest, visit);
  if (expr.arguments->rest_keywords) walk_names(*expr.arguments->rest_keywords, visit);
}

// Whether a body reads a name before it sets it, as Jinja looks for it: in order, into everything.
class Uses {
 public:
  explicit Uses(std::string name) : name_(std::move(name)) {}

  bool in(const Body& body) {
    for (const auto& statement : body) see(*statement);
    return used_;
  }

 private:
  void see_expr(const ExprPtr& expr) {
    if (!expr) return;
    walk_names(*expr, [&](const Expr& name) {
      if (name.kind == ExprKind::Name && name.name == name_ && !set_) used_ = true;
    });
  }
  void see_target(const ExprPtr& expr) {
    if (!expr) return;
    walk_names(*expr, [&](const Expr& name) {
      if (name.kind == ExprKind::Name && name.name == name_) set_ = true;
    });
  }
  void see(const Statement& statement) {
    see_target(statement.target);
    see_expr(statement.value);
    if (statement.macro) {
      for (const Parameter& parameter : statement.macro->parameters)
        if (parameter.name == name_) set_ = true;
      for (const Parameter& parameter : statement.macro->parameters) see_expr(parameter.otherwise);
    }
    for (const Branch& branch : statement.branches) {
      see_expr(branch.test);
      in(branch.body);
    }
    in(statement.body);
    in(statement.otherwise);
    see_expr(statement.test);
  }

  std::string name_;
  bool used_ = false, set_ = false;
};

// ---- what a scope loads and stores ----

void see_expr(Symbols& symbols, const ExprPtr& expr) {
  if (expr) walk_names(*expr, [&](const Expr& name) { symbols.load(name.name); });
}

void see_target(Symbols& symbols, const Expr& target, bool parameter) {
  walk_names(target, [&](const Expr& name) {
    if (name.kind == ExprKind::NamespaceTarget)
      symbols.load(name.name);
    else if (parameter)
      symbols.parameter(name.name);
    else
      symbols.store(name.name);
  });
}

void see_body(Symbols& symbols, const Body& body);

// An if from branch `first` on.
void see_if(Symbols& symbols, const std::vector<Branch>& branches) {
  see_expr(symbols, branches[0].test);
  symbols.take_work(10 * (symbols.variables.size() + 1));
  std::vector<Symbols> seen{symbols, symbols, symbols};
  see_body(seen[0], branches[0].body);
  for (size_t i = 1; i < branches.size(); ++i) {
    if (!branches[i].test) {
      see_body(seen[2], branches[i].body);
      continue;
    }
    see_expr(seen[1], branches[i].test);
    seen[1].take_work(3 * (seen[1].variables.size() + 1));
    std::vector<Symbols> inner{seen[1]};
    see_body(inner[0], branches[i].body);
    seen[1].join(inner);
  }
  symbols.join(seen);
}

void see_statement(Symbols& symbols, const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::If:
      return see_if(symbols, statement.branches);
    case StatementKind::Set:
      see_expr(symbols, statement.value);
      return see_target(symbols, *statement.target, false);
    case StatementKind::SetBlock:
      return see_target(symbols, *statement.target, false);
    case StatementKind::Macro:
      return symbols.store(statement.macro->name);
    default:  // blocks and loops have scopes of their own
      return see_expr(symbols, statement.value);
  }
}

void see_body(Symbols& symbols, const Body& body) {
  for (const auto& statement : body) see_statement(symbols, *statement);
}

// ---- the second walk: names get their slots ----

class Resolver {
 public:
  void resolve(TemplateTree& tree) {
    Function root{nullptr, &tree.function, {}};
    Symbols symbols{&work_, &root, nullptr, 0, {}, {}, {}, {}};
    if (Uses("self").in(tree.body)) fail_at(1, "the variable \"self\" is not supported");
    see_body(symbols, tree.body);
    body(symbols, tree.body);
    finish(symbols, tree.scope);
  }

 private:
  static Symbols inner(Symbols& outer) {
    return {outer.work, outer.function, &outer, outer.level + 1, {}, {}, {}, {}};
  }
  static Symbols inner(Symbols& outer, Function& function) {
    function.outer->body->keeps_slots = true;
    return {outer.work, &function, &outer, outer.level + 1, {}, {}, {}, {}};
  }
  static void finish(const Symbols& symbols, Scope& scope) {
    scope.loads = symbols.loads;
    for (const Load& load : symbols.loads) scope.slots.push_back(load.index);
    for (const std::string& name : symbols.parameters)
      scope.slots.push_back(symbols.variables.at(name).index);
  }

  void name(Symbols& symbols, Expr& expr) const {
    if (in_loop_ > 0 && storing_ && expr.kind == ExprKind::Name && expr.name == "loop")
      fail_at(expr.line, "can't assign to the special variable \"loop\"");
    symbols.load(expr.name);
    const Variable& variable = *symbols.find(expr.name);
    expr.slot = slot_from(symbols.function, variable);
    expr.parameter = variable.parameter && !in_defaults_;
  }

  // Jinja reports an unknown filter or test before it runs a template, but not in an if.
  void check_names(const Expr& expr, bool soft) const {
    const bool filter = expr.kind == ExprKind::Filter;
    const bool known = filter                          ? is_known_filter(expr.name)
                       : expr.kind == ExprKind::Test ? is_known_test(expr.name)
                                                     : true;
    if (!known && !soft) {
      fail_at(expr.line, cat("the ", filter ? "filter" : "test", " \"", shortened(expr.name),
                             "\" is not supported"));
    }
  }

  void exprs(Symbols& symbols, const ExprPtr& expr, bool soft) {
    if (!expr) return;
    if (expr->kind == ExprKind::Name || expr->kind == ExprKind::NamespaceTarget)
      name(symbols, *expr);
    check_names(*expr, soft);
    soft = soft || expr->kind == ExprKind::Condition;
    for (const ExprPtr& operand : expr->operands) exprs(symbols, operand, soft);
    if (!expr->arguments) return;
    for (const ExprPtr& argument : expr->arguments->positional) exprs(symbols, argument, soft);
    for (const auto& [key, argument] : expr->arguments->keywords) exprs(symbols, argument, soft);
    exprs(symbols, expr->arguments->rest, soft);
    exprs(symbols, expr->arguments->rest_keywords, soft);
  }

  void target(Symbols& symbols, const ExprPtr& expr) {
    storing_ = true;
    exprs(symbols, expr, false);
    storing_ = false;
  }

  void body(Symbols& symbols, Body& statements, bool soft = false) {
    for (const auto& statement : statements) one(symbols, *statement, soft);
  }

  void one(Symbols& symbols, Statement& statement, bool soft) {
    switch (statement.kind) {
      case StatementKind::If:
        for (Branch& branch : statement.branches) {
          exprs(symbols, branch.test, true);
          body(symbols, branch.body, true);
        }
        return;
      case StatementKind::For:
        return loop(symbols, statement, soft);
      case StatementKind::Set:
        exprs(symbols, statement.value, soft);
        return target(symbols, statement.target);
      case StatementKind::SetBlock:
      case StatementKind::FilterBlock:
        return block(symbols, statement);
      case StatementKind::Macro:
        storing_ = true;
        symbols.store(statement.macro->name);
        statement.macro_slot =
            slot_from(symbols.function, *symbols.find(statement.macro->name));
        storing_ = false;
        return macro(symbols, statement);
      case StatementKind::CallBlock:
      case StatementKind::Generation:
        macro(symbols, statement);
        return exprs(symbols, statement.value, soft);
      default:
        return exprs(symbols, statement.value, soft);
    }
  }

  void block(Symbols& symbols, Statement& statement) {
    Symbols own = inner(symbols);
    see_body(own, statement.body);
    see_expr(own, statement.value);
    body(own, statement.body);
    exprs(own, statement.value, false);
    if (statement.target) target(symbols, statement.target);
    finish(own, statement.scope);
  }

  void loop(Symbols& symbols, Statement& statement, bool soft) {
    exprs(symbols, statement.value, soft);
    ++in_loop_;
    Symbols own = inner(symbols);
    const bool uses_loop = Uses("loop").in(statement.body);
    if (uses_loop) own.parameter("loop");
    see_target(own, *statement.target, true);
    see_body(own, statement.body);
    if (uses_loop) statement.loop_slot = own.find("loop")->index;
    if (statement.test) test(symbols, statement);
    target(own, statement.target);
    body(own, statement.body);
    finish(own, statement.scope);

    Symbols other = inner(symbols);
    see_body(other, statement.otherwise);
    body(other, statement.otherwise);
    finish(other, statement.else_scope);
    --in_loop_;
  }

  // The test of a loop is a function of its own with the target as its parameter.
  void test(Symbols& symbols, Statement& statement) {
    Function function{symbols.function, &statement.test_function, {}};
    Symbols own = inner(symbols, function);
    see_target(own, *statement.target, true);
    see_expr(own, statement.test);
    statement.test_target = copy_of(*statement.target);
    target(own, statement.test_target);
    exprs(own, statement.test, false);
    finish(own, statement.test_scope);
  }

  static ExprPtr copy_of(const Expr& target) {
    auto copy = std::make_unique<Expr>();
    copy->kind = target.kind;
    copy->line = target.line;
    copy->name = target.name;
    copy->attribute = target.attribute;
    for (const ExprPtr& operand : target.operands) copy->operands.push_back(copy_of(*operand));
    return copy;
  }

  void macro(Symbols& symbols, Statement& statement) {
    MacroBody& macro = *statement.macro;
    Function function{symbols.function, &macro.function, {}};
    Symbols own = inner(symbols, function);
    const auto has = [&](const char* name) {
      return std::ranges::any_of(macro.parameters,
                                 [&](const Parameter& p) { return p.name == name; });
    };
    for (const Parameter& parameter : macro.parameters) own.parameter(parameter.name);
    const auto special = [&](const char* name, int& slot) {
      if (has(name) || !Uses(name).in(statement.body)) return;
      own.parameter(name);
      slot = own.find(name)->index;
    };
    for (const Parameter& parameter : macro.parameters) {
      if (parameter.name == "caller" && !parameter.otherwise && Uses("caller").in(statement.body))
        fail_at(statement.line, "the parameter \"caller\" needs a default");
    }
    special("caller", macro.caller);
    special("kwargs", macro.kwargs);
    special("varargs", macro.varargs);
    for (const Parameter& parameter : macro.parameters) see_expr(own, parameter.otherwise);
    see_body(own, statement.body);
    in_defaults_ = true;
    for (Parameter& parameter : macro.parameters) {
      parameter.index = own.find(parameter.name)->index;
      exprs(own, parameter.otherwise, false);
    }
    in_defaults_ = false;
    body(own, statement.body);
    finish(own, macro.scope);
    macro.body = &statement.body;
  }

  int64_t work_ = 0;
  int in_loop_ = 0;
  bool storing_ = false, in_defaults_ = false;
};

}  // namespace

void resolve_scopes(TemplateTree& tree) { Resolver().resolve(tree); }

}  // namespace minfer::jinja
