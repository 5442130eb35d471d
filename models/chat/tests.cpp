#include <algorithm>
#include <map>

#include "models/chat/run.h"

// Jinja's tests, and the tables of filters and tests by name.
namespace minfer::jinja {
namespace {

// A test without arguments.
template <typename Holds>
void require_none(const CallArgs& args, const Holds& name) {
  Bound(name, args, {}, 0);
}

template <Kind kind>
bool is_kind(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "the test");
  return value.is(kind);
}

template <bool wanted>
bool is_exactly(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "the test");
  return value.is(Kind::Bool) && value.boolean() == wanted;
}

bool is_defined(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "defined");
  return !value.is(Kind::Undefined);
}

bool is_number(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "number");
  return value.is_number();
}

bool is_sequence(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "sequence");
  return length_of(value).has_value() && !value.is(Kind::View);
}

bool is_iterable(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "iterable");
  return length_of(value).has_value() || value.is(Kind::Generator) || value.is(Kind::Loop);
}

bool is_callable(Run&, const Value& value, const CallArgs& args) {
  require_none(args, "callable");
  switch (value.kind()) {
    case Kind::Undefined:
    case Kind::Loop:
    case Kind::Method:
    case Kind::Function:
    case Kind::Macro:
      return true;
    default:
      return false;
  }
}

template <bool lower>
bool is_cased(Run& run, const Value& value, const CallArgs& args) {
  require_none(args, "the test");
  const Value text = run.text(to_text(run.meter(), value));
  return truthy(call_string_method(run, text, lower ? "islower" : "isupper", {}));
}

int64_t remainder(Run& run, const Value& value, const Value& by) {
  MINFER_REQUIRE(Input, value.is_whole() && by.is_whole(),
                 "a test of the remainder of what is no integer is not supported");
  return run.binary("%", value, by).integer();
}

bool is_odd(Run& run, const Value& value, const CallArgs& args) {
  require_none(args, "odd");
  return remainder(run, value, Value::integer(2)) == 1;
}

bool is_even(Run& run, const Value& value, const CallArgs& args) {
  require_none(args, "even");
  return remainder(run, value, Value::integer(2)) == 0;
}

bool is_divisible(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("divisibleby", args, {"num"}, 1);
  return remainder(run, value, bound[0]) == 0;
}

bool is_same(Run&, const Value& value, const CallArgs& args) {
  const Bound bound("sameas", args, {"other"}, 1);
  const Value& other = bound[0];
  if (value.kind() != other.kind()) return false;
  if (value.is(Kind::None)) return true;
  if (value.is(Kind::Bool)) return value.boolean() == other.boolean();
  if (value.is(Kind::Namespace)) return value.space() == other.space();
  throw Error(ErrorKind::Input, cat("the test \"sameas\" of a ", type_name(value),
                                    " is not supported"));
}

bool is_in(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("in", args, {"seq"}, 1);
  return run.contains(bound[0], value);
}

bool is_equal(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("eq", args, {""}, 1);
  return equal(run.meter(), value, bound[0]);
}

bool is_unequal(Run& run, const Value& value, const CallArgs& args) {
  return !is_equal(run, value, args);
}

bool is_less(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("lt", args, {""}, 1);
  return less(run.meter(), value, bound[0]);
}

bool is_greater(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("gt", args, {""}, 1);
  return less(run.meter(), bound[0], value);
}

bool is_at_most(Run& run, const Value& value, const CallArgs& args) {
  return is_less(run, value, args) || is_equal(run, value, args);
}

bool is_at_least(Run& run, const Value& value, const CallArgs& args) {
  return is_greater(run, value, args) || is_equal(run, value, args);
}

const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> all = {
      {"defined", is_defined},
      {"undefined", is_kind<Kind::Undefined>},
      {"none", is_kind<Kind::None>},
      {"boolean", is_kind<Kind::Bool>},
      {"integer", is_kind<Kind::Integer>},
      {"float", is_kind<Kind::Float>},
      {"string", is_kind<Kind::String>},
      {"mapping", is_kind<Kind::Dict>},
      {"true", is_exactly<true>},
      {"false", is_exactly<false>},
      {"number", is_number},
      {"sequence", is_sequence},
      {"iterable", is_iterable},
      {"callable", is_callable},
      {"lower", is_cased<true>},
      {"upper", is_cased<false>},
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"sameas", is_same},
      {"in", is_in},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"==", is_equal},
      {"ne", is_unequal},
      {"!=", is_unequal},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<", is_less},
      {"gt", is_greater},
      {"greaterthan", is_greater},
      {">", is_greater},
      {"le", is_at_most},
      {"<=", is_at_most},
      {"ge", is_at_least},
      {">=", is_at_least},
  };
  return all;
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> all = [] {
    std::map<std::string, Filter> table;
    for (const auto& group : {text_filters(), sequence_filters(), lazy_filters(), number_filters()})
      for (const auto& [name, filter] : group) table[name] = filter;
    return table;
  }();
  return all;
}

}  // namespace

bool is_known_filter(const std::string& name) { return filters().contains(name); }
bool is_known_test(const std::string& name) { return tests().contains(name); }

Value Run::apply_filter(const std::string& name, const Value& value, const CallArgs& args) {
  meter_.step();
  const auto found = filters().find(name);
  MINFER_REQUIRE(Input, found != filters().end(), "the filter \"", shortened(name),
                 "\" is not supported");
  return found->second(*this, value, args);
}

bool Run::apply_test(const std::string& name, const Value& value, const CallArgs& args) {
  meter_.step();
  const auto found = tests().find(name);
  MINFER_REQUIRE(Input, found != tests().end(), "the test \"", shortened(name),
                 "\" is not supported");
  return found->second(*this, value, args);
}

}  // namespace minfer::jinja
