#include <cmath>

#include "models/chat/run.h"

// Python's arithmetic.
namespace minfer::jinja {
namespace {

[[noreturn]] void fail_overflow() {
  throw Error(ErrorKind::Input,
              cat("integers past ", kMaxIntegerBits, " bits are not supported"));
}

int64_t floor_divided(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

Value divided(const Value& a, const Value& b) {
  MINFER_REQUIRE(Input, b.number() != 0, "division by zero");
  // Python rounds the exact quotient of two integers once; so does this, where both are exact.
  constexpr int64_t kExact = int64_t{1} << 53;
  if (a.is_whole() && b.is_whole()) {
    const auto exact = [](int64_t x) { return x >= -kExact && x <= kExact; };
    MINFER_REQUIRE(Input, exact(a.integer()) && exact(b.integer()),
                   "division of integers past 53 bits is not supported");
  }
  return Value::number(a.number() / b.number());
}

Value whole_arithmetic(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (op == "//" || op == "%") {
    MINFER_REQUIRE(Input, b != 0, "integer division or modulo by zero");
    if (b == -1) return whole_arithmetic("*", op == "//" ? a : 0, -1);
    const int64_t quotient = floor_divided(a, b);
    result = op == "//" ? quotient : a - quotient * b;
  }
  if (op == "**") result = power(a, b);
  if (overflow) fail_overflow();
  return Value::integer(result);
}

// Python's float divmod.
Value float_division(const std::string& op, double a, double b) {
  MINFER_REQUIRE(Input, b != 0, "float division or modulo by zero");
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == "%") return Value::number(rest);
  if (quotient == 0) return Value::number(std::copysign(0.0, a / b));
  const double floored = std::floor(quotient);
  return Value::number(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value float_power(double a, double b) {
  MINFER_REQUIRE(Input, a != 0 || b >= 0, "0.0 cannot be raised to a negative power");
  MINFER_REQUIRE(Input, a >= 0 || b == std::floor(b), "complex numbers are not supported");
  const double result = std::pow(a, b);
  MINFER_REQUIRE(Input, std::isfinite(result) || !std::isfinite(a) || !std::isfinite(b),
                 "Numerical result out of range");
  return Value::number(result);
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "/") return divided(a, b);
  const bool negative_power = op == "**" && b.number() < 0;
  if (a.is_whole() && b.is_whole() && !negative_power)
    return whole_arithmetic(op, a.integer(), b.integer());
  const double x = a.number(), y = b.number();
  if (op == "+") return Value::number(x + y);
  if (op == "-") return Value::number(x - y);
  if (op == "*") return Value::number(x * y);
  return op == "**" ? float_power(x, y) : float_division(op, x, y);
}

// Python's Markup escapes what is not Markup when the two are put together.
void require_no_escape(const Text& a, const Text& b) {
  if (a.markup == b.markup) return;
  MINFER_REQUIRE(Input, (a.markup ? b : a).bytes.find_first_of("&<>'\"") == std::string::npos,
                 "adding to a text marked as safe, which escapes, is not supported");
}

Value joined(Run& run, const Value& a, const Value& b) {
  if (a.is(Kind::String)) {
    require_no_escape(a.text(), b.text());
    TextBuilder out(run.meter());
    out.add(a.text()).add(b.text());
    Text both = out.take();
    both.markup = a.text().markup || b.text().markup;
    return run.text(std::move(both));
  }
  const Values &x = a.as<List>().items, &y = b.as<List>().items;
  run.meter().step(static_cast<int64_t>(x.size() + y.size()));
  run.meter().require_room((x.size() + y.size()) * sizeof(Value));
  Values all = x;
  all.insert(all.end(), y.begin(), y.end());
  return a.is(Kind::List) ? make_list(run.meter(), std::move(all))
                          : make_tuple(run.meter(), std::move(all));
}

Value repeated(Run& run, const Value& value, int64_t times) {
  const auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  // Nothing many times is still nothing.
  if (*length_of(value) == 0 || n == 0) times = 0;
  if (value.is(Kind::String)) {
    run.meter().require_room(times == 0 ? 0 : n);
    TextBuilder out(run.meter());
    for (int64_t i = 0; i < times; ++i) out.add(value.text());
    Text text = out.take();
    text.markup = value.text().markup;
    return run.text(std::move(text));
  }
  Values all;
  for (int64_t i = 0; i < times; ++i) {
    const Values& items = value.as<List>().items;
    run.meter().step(static_cast<int64_t>(items.size()));
    run.meter().require_room((all.size() + items.size()) * sizeof(Value));
    all.insert(all.end(), items.begin(), items.end());
  }
  return value.is(Kind::List) ? make_list(run.meter(), std::move(all))
                              : make_tuple(run.meter(), std::move(all));
}

}  // namespace

Value Run::binary(const std::string& op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    MINFER_REQUIRE(Input, !value->is(Kind::Undefined) || (op == "%" && a.is(Kind::String)),
                   value->why());
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  const auto sequence = [](const Value& v) {
    return v.is(Kind::String) || v.is(Kind::List) || v.is(Kind::Tuple);
  };
  if (op == "+" && sequence(a) && a.kind() == b.kind()) return joined(*this, a, b);
  if (op == "*" && sequence(a) && b.is_whole()) return repeated(*this, a, b.integer());
  if (op == "*" && sequence(b) && a.is_whole()) return repeated(*this, b, a.integer());
  if (op == "%" && a.is(Kind::String)) return formatted(*this, a.text(), b);
  throw Error(ErrorKind::Input, cat("unsupported operand type(s) for ", op, ": '", type_name(a),
                                    "' and '", type_name(b), "'"));
}

}  // namespace minfer::jinja
