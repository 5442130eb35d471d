#include <algorithm>
#include <climits>

#include "models/chat/run.h"

namespace minfer::jinja {

Value Run::evaluate(const Expr& expr) {
  meter_.step();
  const Deeper deeper(depth_, kMaxDepth);
  switch (expr.kind) {
    case ExprKind::Constant:
      return expr.constant;
    case ExprKind::Name:
    case ExprKind::NamespaceTarget:
      return evaluate_name(expr);
    case ExprKind::List:
    case ExprKind::Tuple: {
      Values items;
      for (const ExprPtr& operand : expr.operands) items.push_back(evaluate(*operand));
      return expr.kind == ExprKind::List ? make_list(meter_, std::move(items))
                                         : make_tuple(meter_, std::move(items));
    }
    case ExprKind::Dict:
      return evaluate_dict(expr);
    case ExprKind::Negate:
    case ExprKind::Plus:
      return negate(evaluate(*expr.operands[0]), expr.kind == ExprKind::Negate);
    case ExprKind::Not:
      return Value::boolean(!truthy(evaluate(*expr.operands[0])));
    case ExprKind::And:
    case ExprKind::Or:
      return evaluate_logic(expr);
    case ExprKind::Binary: {
      const Value left = evaluate(*expr.operands[0]), right = evaluate(*expr.operands[1]);
      line_ = expr.line;
      return binary(expr.name, left, right);
    }
    case ExprKind::Concat:
      return evaluate_concat(expr);
    case ExprKind::Compare:
      return evaluate_compare(expr);
    case ExprKind::Condition:
      return evaluate_condition(expr);
    case ExprKind::Attribute: {
      const Value value = evaluate(*expr.operands[0]);
      line_ = expr.line;
      return get_attribute(value, expr.name);
    }
    case ExprKind::Item: {
      const Value value = evaluate(*expr.operands[0]), index = evaluate(*expr.operands[1]);
      line_ = expr.line;
      return get_item(value, index);
    }
    case ExprKind::Slice:
      return slice(expr);
    case ExprKind::Call:
      return evaluate_call(expr);
    case ExprKind::Filter:
      return evaluate_filter(expr);
    case ExprKind::Test: {
      const Value value = evaluate(*expr.operands[0]);
      const CallArgs args = arguments(*expr.arguments);
      line_ = expr.line;
      return Value::boolean(apply_test(expr.name, value, args));
    }
  }
  return {};
}

Value Run::evaluate_name(const Expr& expr) {
  const Value& value = slot(expr.slot);
  if (!value.is(Kind::Missing)) return value;
  MINFER_REQUIRE(Input, !expr.parameter, "the variable \"", shortened(expr.name),
                 "\" behind its loop is not supported");
  return undefined(cat("'", expr.name, "' is undefined"));
}

Value Run::evaluate_dict(const Expr& expr) {
  DictBuilder dict(meter_);
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    const Value key = evaluate(*expr.operands[i]);
    dict.set(key, evaluate(*expr.operands[i + 1]));
  }
  return dict.take();
}

Value Run::evaluate_logic(const Expr& expr) {
  Value left = evaluate(*expr.operands[0]);
  const bool decided = truthy(left) == (expr.kind == ExprKind::Or);
  return decided ? left : evaluate(*expr.operands[1]);
}

Value Run::evaluate_concat(const Expr& expr) {
  Values parts;
  for (const ExprPtr& operand : expr.operands) parts.push_back(evaluate(*operand));
  TextBuilder out(meter_);
  for (const Value& part : parts) add_text(out, meter_, part);
  return text(out.take());
}

Value Run::evaluate_condition(const Expr& expr) {
  if (truthy(evaluate(*expr.operands[1]))) return evaluate(*expr.operands[0]);
  if (expr.operands.size() > 2) return evaluate(*expr.operands[2]);
  return undefined(cat("the inline if-expression on line ", expr.line,
                       " evaluated to false and no else section was defined."));
}

bool Run::compare(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(meter_, a, b);
  if (op == "!=") return !equal(meter_, a, b);
  if (op == "in") return contains(b, a);
  if (op == "notin") return !contains(b, a);
  if (op == "<") return less(meter_, a, b);
  if (op == ">") return less(meter_, b, a);
  // Not the opposite of < for NaN.
  const bool strictly = op == "<=" ? less(meter_, a, b) : less(meter_, b, a);
  return strictly || equal(meter_, a, b);
}

Value Run::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.operands[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.operands[i + 1]);
    line_ = expr.line;
    if (!compare(expr.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Run::negate(const Value& value, bool minus) {
  MINFER_REQUIRE(Input, !value.is(Kind::Undefined), value.why());
  MINFER_REQUIRE(Input, value.is_number(), "bad operand type for unary ", minus ? "-" : "+", ": '",
                 type_name(value), "'");
  if (value.is(Kind::Float)) return Value::number(minus ? -value.number() : value.number());
  MINFER_REQUIRE(Input, value.integer() != INT64_MIN, "integers past ", kMaxIntegerBits,
                 " bits are not supported");
  return Value::integer(minus ? -value.integer() : value.integer());
}

CallArgs Run::arguments(const Arguments& arguments) {
  CallArgs args;
  for (const ExprPtr& expr : arguments.positional) args.positional.push_back(evaluate(*expr));
  const auto add = [&](const std::string& name, Value value) {
    for (const auto& [known, old] : args.keywords)
      MINFER_REQUIRE(Input, known != name, "the argument \"", shortened(name), "\" is given twice");
    meter_.step(static_cast<int64_t>(args.keywords.size()));
    args.keywords.emplace_back(name, std::move(value));
  };
  for (const auto& [name, expr] : arguments.keywords) add(name, evaluate(*expr));
  if (arguments.rest) {
    for (const Value& value : items_of(evaluate(*arguments.rest))) args.positional.push_back(value);
  }
  if (arguments.rest_keywords) {
    const Value rest = evaluate(*arguments.rest_keywords);
    MINFER_REQUIRE(Input, rest.is(Kind::Dict), "argument after ** must be a mapping, not ",
                   type_name(rest));
    for (const auto& [name, value] : rest.as<Dict>().items)
      add(text_of(name, "keywords").bytes, value);
  }
  return args;
}

Value Run::evaluate_call(const Expr& expr) {
  const Value callee = evaluate(*expr.operands[0]);
  const CallArgs args = arguments(*expr.arguments);
  line_ = expr.line;
  return call(callee, args);
}

Value Run::evaluate_filter(const Expr& expr) {
  const Value value = expr.operands[0] ? evaluate(*expr.operands[0]) : block_;
  const CallArgs args = arguments(*expr.arguments);
  line_ = expr.line;
  return apply_filter(expr.name, value, args);
}

// ---- slices ----

namespace {

struct Places {
  int64_t start, step, count;
};

// Which of `length` items a slice takes, as Python's slice.indices.
Places places_of(int64_t length, const Value& start, const Value& stop, const Value& step_value) {
  const auto given = [](const Value& v) { return !v.is(Kind::Missing) && !v.is(Kind::None); };
  const char* const kWhat = "slice indices must be integers or None";
  const int64_t step = given(step_value) ? whole(step_value, kWhat) : 1;
  MINFER_REQUIRE(Input, step != 0, "slice step cannot be zero");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (!given(value)) return otherwise;
    const int64_t index = whole(value, kWhat);
    // No overflow: the length is small.
    return std::clamp(index < 0 ? std::max(index, -length - 1) + length : index, low, high);
  };
  const int64_t first = bound(start, step > 0 ? low : high);
  const int64_t last = bound(stop, step > 0 ? high : low);
  const auto distance = step > 0 ? last - first : first - last;
  const auto stride = step > 0 ? step : step == INT64_MIN ? INT64_MAX : -step;
  return {first, step, distance <= 0 ? 0 : (distance - 1) / stride + 1};
}

}  // namespace

Value Run::slice(const Expr& expr) {
  const Value value = evaluate(*expr.operands[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i)
    if (expr.operands[i + 1]) bounds[i] = evaluate(*expr.operands[i + 1]);
  line_ = expr.line;
  MINFER_REQUIRE(Input, !value.is(Kind::Undefined), value.why());
  const bool sliceable = value.is(Kind::String) || value.is(Kind::List) || value.is(Kind::Tuple);
  MINFER_REQUIRE(Input, sliceable, "a slice of a ", type_name(value), " is not supported");
  const auto [start, step, count] =
      places_of(*length_of(value), bounds[0], bounds[1], bounds[2]);
  const auto index = [&, first = start, stride = step](int64_t i) {
    return static_cast<size_t>(first + i * stride);
  };
  if (!value.is(Kind::String)) {
    meter_.step(count);
    meter_.require_room(static_cast<size_t>(count) * sizeof(Value));
    Values items;
    for (int64_t i = 0; i < count; ++i) items.push_back(value.as<List>().items[index(i)]);
    return value.is(Kind::List) ? make_list(meter_, std::move(items))
                                : make_tuple(meter_, std::move(items));
  }
  const String& string = value.as<String>();
  if (count == 0) return text("");
  if (step == 1) {
    const size_t begin = string.position(meter_, index(0));
    return sliced(*this, string.text, begin, string.position(meter_, index(count)));
  }
  std::vector<uint32_t> starts;  // of the code points
  meter_.require_room(string.length * 4);
  meter_.step(static_cast<int64_t>(string.length / 8));
  for (size_t at = 0, n = 0; at < string.text.bytes.size(); at += n) {
    code_point_at(string.text.bytes, at, n);
    starts.push_back(static_cast<uint32_t>(at));
  }
  starts.push_back(static_cast<uint32_t>(string.text.bytes.size()));
  TextBuilder out(meter_);
  for (int64_t i = 0; i < count; ++i)
    out.add(string.text, starts[index(i)], starts[index(i) + 1]);
  return text(out.take());
}

}  // namespace minfer::jinja
