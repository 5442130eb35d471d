#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/chat/ast.h"
#include "models/chat/value.h"

namespace minfer::jinja {

// The variables of one call of a function.
struct Activation {
  Activation* outer = nullptr;
  Values slots;
};

struct Macro : Object {
  Macro(Meter& meter, const MacroBody& b, Activation& d)
      : Object(&meter, sizeof(Macro)), body(b), defined_in(d) {}
  std::string shown() const { return body.name.empty() ? "anonymous" : "'" + body.name + "'"; }
  const MacroBody& body;
  Activation& defined_in;  // owned by the run
};

// The variable `loop`.
struct Loop : Object {
  Loop(Meter& meter, std::unique_ptr<Iterator> i, std::optional<int64_t> known)
      : Object(&meter, sizeof(Loop)), items(std::move(i)), length(known) {}
  // False after the last item.
  bool next(Value& item);
  const Value& peek();  // Missing after the last item
  int64_t total(Meter& meter);
  // Releases all values, since one of them may hold this loop.
  void close();
  bool closed() const { return !items; }

  std::unique_ptr<Iterator> items;
  std::optional<int64_t> length;
  int64_t index0 = -1;
  Value before, current;
  std::optional<Value> after;
  Value last_changed;
};

struct CallArgs {
  Values positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// The arguments of a call by parameter, Missing if not given. Throws Input if they do not fit.
class Bound {
 public:
  Bound(const char* what, const CallArgs& args, std::initializer_list<const char*> names,
        size_t n_required);
  const Value& operator[](size_t i) const { return values_[i]; }
  bool has(size_t i) const { return !values_[i].is(Kind::Missing); }
  bool flag(size_t i) const { return truthy(values_[i]); }

 private:
  Values values_;
};

// One rendering of a template.
class Run {
 public:
  Run(const TemplateTree& tree, Meter& meter) : meter_(meter), tree_(tree) {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void set_variable(const std::string& name, Value value) { context_[name] = std::move(value); }
  // Throws Input with the line, or Usage with the message of raise_exception.
  Text render();

  // ---- for filters, tests and functions ----
  Meter& meter() { return meter_; }
  Value text(std::string own) { return Value::text(meter_, std::move(own)); }
  Value text(Text text) { return Value::text(&meter_, std::move(text)); }
  Value undefined(std::string why) { return Value::undefined(meter_, std::move(why)); }
  // Throws Input if Python cannot iterate over the value.
  std::unique_ptr<Iterator> iterate(const Value& value);
  Values items_of(const Value& value);
  Value get_item(const Value& value, const Value& index);
  Value get_attribute(const Value& value, const std::string& name);
  bool contains(const Value& container, const Value& item);
  Value binary(const std::string& op, const Value& a, const Value& b);
  Value apply_filter(const std::string& name, const Value& value, const CallArgs& args);
  bool apply_test(const std::string& name, const Value& value, const CallArgs& args);
  Value call(const Value& callee, const CallArgs& args);
  Value new_namespace(const CallArgs& args);

 private:
  enum class Flow { Next, Break, Continue };
  // Tags, expressions and calls together: macros may call each other, but must fit in the stack.
  static constexpr int kMaxDepth = 1500;

  // ---- statements (run_statements.cpp) ----
  Flow run_body(const Body& body);
  Flow run_one(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  void run_iterations(const Statement& statement, Loop& loop, const Value& loop_value, bool& any);
  Flow run_block(const Statement& statement);
  void run_call_block(const Statement& statement);
  void output(const Value& value);
  void output_text(const Value& value);
  // The text that a body writes.
  Text captured(const Body& body, Flow& flow);
  void assign(const Expr& target, const Value& value);
  void assign_tuple(const Expr& target, const Value& value);
  void enter(const Scope& scope);
  void leave(const Scope& scope);

  // ---- expressions (run_expressions.cpp) ----
  Value evaluate(const Expr& expr);
  Value evaluate_name(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_condition(const Expr& expr);
  Value evaluate_logic(const Expr& expr);
  bool compare(const std::string& op, const Value& a, const Value& b);
  Value evaluate_compare(const Expr& expr);
  Value negate(const Value& value, bool minus);
  Value slice(const Expr& expr);
  Value evaluate_call(const Expr& expr);
  Value evaluate_filter(const Expr& expr);
  CallArgs arguments(const Arguments& arguments);

  // ---- lookup (run_lookup.cpp) ----
  Value attribute_of_type(const Value& value, const std::string& name);

  // ---- calls (run_calls.cpp) ----
  Value call_macro(const Macro& macro, const CallArgs& args);
  void bind_macro(const Macro& macro, const CallArgs& args, Activation& activation);
  Value call_method(const Method& method, const CallArgs& args);
  Value call_loop(const Value& loop, const std::string& name, const CallArgs& args);
  Value new_macro(const MacroBody& body);

  Value& slot(const Slot& slot);

  friend class LoopTest;

  Meter& meter_;
  const TemplateTree& tree_;
  std::map<std::string, Value> context_;
  std::vector<std::unique_ptr<Namespace>> spaces_;
  std::vector<std::unique_ptr<Activation>> kept_;
  Activation root_;
  Activation* here_ = &root_;
  TextBuilder* out_ = nullptr;
  Value block_;  // the text of the block that is being filtered
  int line_ = 0, depth_ = 0, calls_ = 0;
};

// ---- tables of names ----

using Filter = Value (*)(Run& run, const Value& value, const CallArgs& args);
using Test = bool (*)(Run& run, const Value& value, const CallArgs& args);
using NamedFilter = std::pair<const char*, Filter>;
std::vector<NamedFilter> text_filters();
std::vector<NamedFilter> sequence_filters();
std::vector<NamedFilter> lazy_filters();
std::vector<NamedFilter> number_filters();
bool is_global_function(const std::string& name);
Value call_function(Run& run, const std::string& name, const CallArgs& args);
bool is_string_method(const std::string& name);
Value call_string_method(Run& run, const Value& self, const std::string& name,
                         const CallArgs& args);

// ---- shared by filters and methods ----

// Python's strip with mode 'l', 'r' or 'b'; `chars` may be Missing or None.
Value stripped(Run& run, const Value& text, const Value& chars, char mode);
Value replaced(Run& run, const Text& text, const Text& from, const Text& to, int64_t count);
Value in_case(Run& run, const Text& text, Case which);
Value capitalized(Run& run, const Text& text);
Value sliced(Run& run, const Text& text, size_t begin, size_t end);
// The lines of a text, as Python's splitlines: without their ends, or with them if keep_ends.
Values split_lines(Run& run, const Text& text, bool keep_ends);
// The first place of `part`, which is not empty, from `at` on, or npos. It takes linear time.
size_t find_text(std::string_view text, std::string_view part, size_t at);
// The integer of a value that Python takes as an index. Throws Input, with `what`, for any other.
int64_t whole(const Value& value, const char* what);
const Text& text_of(const Value& value, const char* what);
// Python's `format % arguments`, with %s, %r, %d, %i and %%.
Value formatted(Run& run, const Text& format, const Value& arguments);
// Gets what `attribute` names of an item, such as "function.name".
class AttributeGetter {
 public:
  AttributeGetter(Run& run, const Value& attribute, Value otherwise = {});
  Value get(Run& run, Value item) const;

 private:
  Values parts_;
  Value otherwise_;
};
Value ignoring_case(Run& run, const Value& value, bool case_sensitive);
std::string local_time(const std::string& format);  // clock.cpp

}  // namespace minfer::jinja
