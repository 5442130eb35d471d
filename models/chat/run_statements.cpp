#include <algorithm>

#include "models/chat/run.h"

namespace minfer::jinja {
namespace {

template <typename T>
class Restore {
 public:
  explicit Restore(T& place) : place_(place), before_(place) {}
  ~Restore() { place_ = std::move(before_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& place_;
  T before_;
};

}  // namespace

Run::~Run() = default;

// Runs the test of a loop over the items, as they are asked for.
class LoopTest : public Iterator {
 public:
  LoopTest(Run& run, const Statement& statement, std::unique_ptr<Iterator> items)
      : run_(run), statement_(statement), items_(std::move(items)) {
    auto own = std::make_unique<Activation>();
    own->outer = run.here_;
    const auto n_slots = static_cast<size_t>(statement.test_function.n_slots);
    run.meter_.take(sizeof(Activation) + n_slots * sizeof(Value));
    own->slots.resize(n_slots);
    own_ = own.get();
    run.kept_.push_back(std::move(own));
  }
  bool next(Value& item) override {
    const Restore here(run_.here_);
    run_.here_ = own_;
    if (!entered_) run_.enter(statement_.test_scope);
    entered_ = true;
    while (items_->next(item)) {
      run_.assign(*statement_.test_target, item);
      if (truthy(run_.evaluate(*statement_.test))) return true;
    }
    return false;
  }

 private:
  Run& run_;
  const Statement& statement_;
  std::unique_ptr<Iterator> items_;
  Activation* own_;
  bool entered_ = false;
};

Text Run::render() {
  TextBuilder out(meter_, kMaxOutputBytes);
  out_ = &out;
  try {
    root_.slots.resize(static_cast<size_t>(tree_.function.n_slots));
    enter(tree_.scope);
    run_body(tree_.body);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input) throw;
    throw e.in(cat("chat template, line ", line_));
  }
  return out.take();
}

void Run::enter(const Scope& scope) {
  meter_.step(static_cast<int64_t>(scope.loads.size()));
  for (const Load& load : scope.loads) {
    Value value;
    if (load.from == Load::From::Outer) {
      value = slot(load.outer);
    } else if (load.from == Load::From::Context) {
      const auto found = context_.find(load.name);
      if (found != context_.end())
        value = found->second;
      else if (is_global_function(load.name))
        value = {Kind::Function, std::make_shared<Function>(&meter_, load.name)};
    }
    here_->slots[static_cast<size_t>(load.index)] = std::move(value);
  }
}

void Run::leave(const Scope& scope) {
  for (const int index : scope.slots) here_->slots[static_cast<size_t>(index)] = {};
}

Value& Run::slot(const Slot& slot) {
  Activation* at = here_;
  for (int i = 0; i < slot.hops; ++i) at = at->outer;
  return at->slots[static_cast<size_t>(slot.index)];
}

Run::Flow Run::run_body(const Body& body) {
  for (const auto& statement : body) {
    const Flow flow = run_one(*statement);
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Run::Flow Run::run_one(const Statement& statement) {
  meter_.step();
  line_ = statement.line;
  const Deeper deeper(depth_, kMaxDepth);
  switch (statement.kind) {
    case StatementKind::Text:
      out_->add(statement.text.text());
      return Flow::Next;
    case StatementKind::Output:
      output(evaluate(*statement.value));
      return Flow::Next;
    case StatementKind::If:
      return run_if(statement);
    case StatementKind::For:
      return run_for(statement);
    case StatementKind::Set:
      assign(*statement.target, evaluate(*statement.value));
      return Flow::Next;
    case StatementKind::SetBlock:
    case StatementKind::FilterBlock:
      return run_block(statement);
    case StatementKind::Macro:
      slot(statement.macro_slot) = new_macro(*statement.macro);
      return Flow::Next;
    case StatementKind::CallBlock:
      run_call_block(statement);
      return Flow::Next;
    case StatementKind::Generation:
      output(call(new_macro(*statement.macro), {}));
      return Flow::Next;
    case StatementKind::Break:
      return Flow::Break;
    case StatementKind::Continue:
      return Flow::Continue;
  }
  return Flow::Next;
}

void Run::output(const Value& value) { add_text(*out_, meter_, value); }

// Jinja makes no text of what a block gives.
void Run::output_text(const Value& value) { out_->add(text_of(value, "what a block writes")); }

Run::Flow Run::run_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.test) line_ = branch.test->line;
    if (!branch.test || truthy(evaluate(*branch.test))) return run_body(branch.body);
  }
  return Flow::Next;
}

Run::Flow Run::run_for(const Statement& statement) {
  const Value over = evaluate(*statement.value);
  std::unique_ptr<Iterator> items = iterate(over);
  std::optional<int64_t> length = length_of(over);
  if (statement.test) {
    items = std::make_unique<LoopTest>(*this, statement, std::move(items));
    length.reset();
  }
  const auto loop = std::make_shared<Loop>(meter_, std::move(items), length);
  const struct Closer {
    Loop& loop;
    ~Closer() { loop.close(); }
  } closer{*loop};
  bool any = false;
  run_iterations(statement, *loop, {Kind::Loop, loop}, any);
  leave(statement.scope);
  if (any || statement.otherwise.empty()) return Flow::Next;
  enter(statement.else_scope);
  const Flow other = run_body(statement.otherwise);
  leave(statement.else_scope);
  return other;
}

// Sets `any` where a body came to its end. Jinja runs the else of a loop unless one did: `break` and
// `continue` do not count.
void Run::run_iterations(const Statement& statement, Loop& loop, const Value& loop_value,
                         bool& any) {
  Value item;
  while (true) {
    line_ = statement.line;
    if (!loop.next(item)) return;
    assign(*statement.target, item);
    if (statement.loop_slot >= 0)
      here_->slots[static_cast<size_t>(statement.loop_slot)] = loop_value;
    enter(statement.scope);
    const Flow flow = run_body(statement.body);
    if (flow == Flow::Break) return;
    if (flow == Flow::Next) any = true;
  }
}

Text Run::captured(const Body& body, Flow& flow) {
  const Restore out(out_);
  TextBuilder own(meter_);
  out_ = &own;
  flow = run_body(body);
  return own.take();
}

Run::Flow Run::run_block(const Statement& statement) {
  const Restore block(block_);
  enter(statement.scope);
  Flow flow = Flow::Next;
  Text written = captured(statement.body, flow);
  if (flow != Flow::Next) return flow;
  block_ = text(std::move(written));
  line_ = statement.line;
  const Value result = statement.value ? evaluate(*statement.value) : block_;
  if (statement.target)
    assign(*statement.target, result);
  else
    output_text(result);
  leave(statement.scope);
  return Flow::Next;
}

void Run::run_call_block(const Statement& statement) {
  const Expr& expr = *statement.value;
  const Value caller = new_macro(*statement.macro);
  const Value callee = evaluate(*expr.operands[0]);
  CallArgs args = arguments(*expr.arguments);
  for (const auto& [name, value] : args.keywords)
    MINFER_REQUIRE(Input, name != "caller", "the argument \"caller\" is given twice");
  args.keywords.emplace_back("caller", caller);
  output_text(call(callee, args));
}

void Run::assign(const Expr& target, const Value& value) {
  meter_.step();
  switch (target.kind) {
    case ExprKind::Tuple:
      return assign_tuple(target, value);
    case ExprKind::NamespaceTarget: {
      const Value& space = slot(target.slot);
      MINFER_REQUIRE(Input, space.is(Kind::Namespace),
                     "cannot assign attribute on non-namespace object");
      for (auto& [name, old] : space.space()->items) {
        meter_.step();
        if (name != target.attribute) continue;
        old = value;
        return;
      }
      meter_.take(sizeof(Dict::Item));
      space.space()->items.emplace_back(target.attribute, value);
      return;
    }
    default:
      slot(target.slot) = value;
  }
}

void Run::assign_tuple(const Expr& target, const Value& value) {
  const std::unique_ptr<Iterator> items = iterate(value);
  Values all;
  Value item;
  while (all.size() <= target.operands.size() && items->next(item)) all.push_back(item);
  MINFER_REQUIRE(Input, all.size() >= target.operands.size(), "not enough values to unpack (expected ",
                 target.operands.size(), ", got ", all.size(), ")");
  MINFER_REQUIRE(Input, all.size() == target.operands.size(), "too many values to unpack (expected ",
                 target.operands.size(), ")");
  for (size_t i = 0; i < all.size(); ++i) assign(*target.operands[i], all[i]);
}

}  // namespace minfer::jinja
