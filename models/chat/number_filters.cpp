#include <charconv>
#include <cmath>

#include "models/chat/run.h"

namespace minfer::jinja {
namespace {

// A number as Python's int() and float() take it: white space around, a sign, single underscores.
std::optional<std::string> digits_of(const std::string& text) {
  const size_t begin = skip_space(text, 0), end = skip_space_back(text, text.size());
  if (begin >= end) return std::nullopt;
  std::string out;
  for (size_t at = begin; at < end; ++at) {
    const char c = text[at];
    MINFER_REQUIRE(Input, (c & '\x80') == 0, "numbers that are not ASCII are not supported");
    if (c != '_') {
      out += c;
      continue;
    }
    const auto digit = [&](size_t i) { return i < end && text[i] >= '0' && text[i] <= '9'; };
    if (at == begin || !digit(at - 1) || !digit(at + 1)) return std::nullopt;
  }
  return out;
}

std::optional<int64_t> parse_integer(const std::string& text) {
  std::optional<std::string> digits = digits_of(text);
  if (!digits) return std::nullopt;
  if (digits->starts_with('+') && !digits->starts_with("+-")) digits->erase(0, 1);
  int64_t value = 0;
  const char *begin = digits->data(), *end = begin + digits->size();
  const auto [stop, fault] = std::from_chars(begin, end, value);
  if (fault == std::errc::invalid_argument || stop != end) return std::nullopt;
  MINFER_REQUIRE(Input, fault == std::errc(), "integers past ", kMaxIntegerBits,
                 " bits are not supported");
  return value;
}

std::optional<double> parse_float(const std::string& text) {
  std::optional<std::string> digits = digits_of(text);
  if (!digits) return std::nullopt;
  if (digits->starts_with('+') && !digits->starts_with("+-")) digits->erase(0, 1);
  double value = 0;
  const char *begin = digits->data(), *end = begin + digits->size();
  // "inf", "infinity" and "nan" in any case, but not "nan(...)".
  if (digits->find('(') != digits->npos) return std::nullopt;
  const auto [stop, fault] = std::from_chars(begin, end, value);
  if (fault == std::errc::invalid_argument || stop != end) return std::nullopt;
  MINFER_REQUIRE(Input, fault == std::errc(), "a number is out of range");
  return value;
}

std::optional<int64_t> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  MINFER_REQUIRE(Input, std::fabs(value) < 0x1p63, "integers past ", kMaxIntegerBits,
                 " bits are not supported");
  return static_cast<int64_t>(value);
}

void require_defined(const Value& value) {
  MINFER_REQUIRE(Input, !value.is(Kind::Undefined), value.why());
}

Value int_(Run&, const Value& value, const CallArgs& args) {
  const Bound bound("int", args, {"default", "base"}, 0);
  MINFER_REQUIRE(Input, !bound.has(1) || whole(bound[1], "base") == 10,
                 "int with a base other than 10 is not supported");
  require_defined(value);
  const Value otherwise = bound.has(0) ? bound[0] : Value::integer(0);
  std::optional<int64_t> out;
  if (value.is(Kind::String)) {
    out = parse_integer(value.text().bytes);
    if (!out) {
      const std::optional<double> real = parse_float(value.text().bytes);
      if (real) out = truncated(*real);
    }
  } else if (value.is(Kind::Float)) {
    MINFER_REQUIRE(Input, !std::isinf(value.number()), "cannot convert float infinity to integer");
    out = truncated(value.number());
  } else if (value.is_whole()) {
    out = value.integer();
  }
  return out ? Value::integer(*out) : otherwise;
}

Value float_(Run&, const Value& value, const CallArgs& args) {
  const Bound bound("float", args, {"default"}, 0);
  require_defined(value);
  if (value.is_number()) return Value::number(value.number());
  std::optional<double> out;
  if (value.is(Kind::String)) out = parse_float(value.text().bytes);
  if (out) return Value::number(*out);
  return bound.has(0) ? bound[0] : Value::number(0);
}

Value abs(Run&, const Value& value, const CallArgs& args) {
  Bound("abs", args, {}, 0);
  MINFER_REQUIRE(Input, value.is_number(), "bad operand type for abs(): '", type_name(value), "'");
  if (value.is(Kind::Float)) return Value::number(std::fabs(value.number()));
  MINFER_REQUIRE(Input, value.integer() != INT64_MIN, "integers past ", kMaxIntegerBits,
                 " bits are not supported");
  return Value::integer(std::abs(value.integer()));
}

// To `precision` decimals as Python does: by the exact decimal value, ties to even.
double rounded(double value, int64_t precision) {
  if (!std::isfinite(value)) return value;
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value);
  double out = 0;
  std::from_chars(text, text + std::char_traits<char>::length(text), out);
  return out;
}

Value round_(Run&, const Value& value, const CallArgs& args) {
  const Bound bound("round", args, {"precision", "method"}, 0);
  const int64_t precision = bound.has(0) ? whole(bound[0], "the precision") : 0;
  const std::string method = bound.has(1) ? text_of(bound[1], "the method").bytes : "common";
  MINFER_REQUIRE(Input, method == "common" || method == "ceil" || method == "floor",
                 "method must be common, ceil or floor");
  MINFER_REQUIRE(Input, value.is_number(), "type ", type_name(value),
                 " doesn't define __round__ method");
  MINFER_REQUIRE(Input, precision >= 0 && precision <= 15,
                 "round to less than 0 or more than 15 decimals is not supported");
  if (method == "common") {
    if (value.is_whole()) return Value::integer(value.integer());
    return Value::number(rounded(value.number(), precision));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.number() * scale;
  MINFER_REQUIRE(Input, std::fabs(scaled) < 0x1p53, "round of numbers past 53 bits is not supported");
  return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

}  // namespace

std::vector<NamedFilter> number_filters() {
  return {{"int", int_}, {"float", float_}, {"abs", abs}, {"round", round_}};
}

}  // namespace minfer::jinja
