#include "models/chat/value.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace minfer::jinja {

Value Value::boolean(bool value) {
  Value out(Kind::Bool);
  out.scalar_.integer = value ? 1 : 0;
  return out;
}

Value Value::integer(int64_t value) {
  Value out(Kind::Integer);
  out.scalar_.integer = value;
  return out;
}

Value Value::number(double value) {
  Value out(Kind::Float);
  out.scalar_.number = value;
  return out;
}

Value Value::text(Meter* meter, Text text) {
  return {Kind::String, std::make_shared<String>(meter, std::move(text))};
}

Value Value::undefined(Meter& meter, std::string why) {
  return {Kind::Undefined, std::make_shared<UndefinedReason>(&meter, std::move(why))};
}

Value Value::of(Namespace* space) {
  Value out(Kind::Namespace);
  out.scalar_.space = space;
  return out;
}

const Text& Value::text() const { return as<String>().text; }
const std::string& Value::why() const { return as<UndefinedReason>().why; }

size_t String::position(Meter& meter, size_t index) const {
  const std::string& bytes = text.bytes;
  if (length == bytes.size()) return index;
  const auto begins = [&](size_t at) { return (bytes[at] & '\xc0') != '\x80'; };
  meter.scan(std::min(index, length - index) * 2);
  size_t at = 0;
  if (index <= length / 2) {
    for (; index > 0; --index)
      do ++at;
      while (at < bytes.size() && !begins(at));
    return at;
  }
  at = bytes.size();
  for (; index < length; ++index)
    do --at;
    while (!begins(at));
  return at;
}

int nesting_of(const Values& values) {
  int deepest = 0;
  for (const Value& value : values) deepest = std::max(deepest, value.nesting());
  return deepest;
}

Value make_list(Meter& meter, Values items) {
  return {Kind::List, std::make_shared<List>(meter, std::move(items))};
}

Value make_tuple(Meter& meter, Values items) {
  return {Kind::Tuple, std::make_shared<List>(meter, std::move(items))};
}

Dict::Dict(Meter& meter, std::vector<Item> unique_items,
           std::unordered_multimap<size_t, size_t> index, int nesting)
    : Object(&meter, sizeof(Dict) + unique_items.capacity() * (sizeof(Item) + 48), nesting + 1),
      items(std::move(unique_items)),
      index_(std::move(index)) {}

const Value* Dict::find(Meter& meter, const Value& key) const {
  const auto [begin, end] = index_.equal_range(hash_of(meter, key));
  for (auto at = begin; at != end; ++at) {
    meter.step();
    const Item& item = items[at->second];
    if (equal(meter, item.first, key)) return &item.second;
  }
  return nullptr;
}

namespace {
size_t hash_bytes(std::string_view bytes) { return std::hash<std::string_view>()(bytes); }

// Spreads numbers, so that none of their patterns fills one bucket.
size_t hash_integer(int64_t value) {
  auto x = static_cast<uint64_t>(value) * 0x9e3779b97f4a7c15u;
  return (x ^ x >> 32) * 0xbf58476d1ce4e5b9u;
}
}  // namespace

const Value* Dict::find(std::string_view key) const {
  const auto [begin, end] = index_.equal_range(hash_bytes(key));
  for (auto at = begin; at != end; ++at) {
    const Item& item = items[at->second];
    if (item.first.is(Kind::String) && item.first.text().bytes == key) return &item.second;
  }
  return nullptr;
}

void DictBuilder::set(const Value& key, const Value& value) {
  meter_->step();
  nesting_ = std::max({nesting_, key.nesting(), value.nesting()});
  const size_t hash = hash_of(*meter_, key);
  const auto [begin, end] = index_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    meter_->step();
    if (!equal(*meter_, items_[at->second].first, key)) continue;
    items_[at->second].second = value;
    return;
  }
  meter_->require_room(items_.size() * (sizeof(Dict::Item) + 48));
  index_.emplace(hash, items_.size());
  items_.emplace_back(key, value);
}

Value DictBuilder::take() {
  return {Kind::Dict,
          std::make_shared<Dict>(*meter_, std::move(items_), std::move(index_), nesting_)};
}

namespace {
int64_t range_length(int64_t begin, int64_t end, int64_t step) {
  MINFER_REQUIRE(Input, step != 0, "range() arg 3 must not be zero");
  const auto distance = step > 0 ? static_cast<__int128>(end) - begin
                                 : static_cast<__int128>(begin) - end;
  const auto stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 length = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  MINFER_REQUIRE(Input, length <= 100'000, "Range too big: the limit is 100000 items");
  return static_cast<int64_t>(length);
}
}  // namespace

Range::Range(Meter& meter, int64_t b, int64_t e, int64_t s)
    : Object(&meter, sizeof(Range)), begin(b), end(e), step(s), length(range_length(b, e, s)) {}

Value View::at(Meter& meter, size_t index) const {
  const auto& [key, value] = dict.as<Dict>().items[index];
  if (which == ViewOf::Keys) return key;
  if (which == ViewOf::Values) return value;
  return make_tuple(meter, {key, value});
}

std::optional<int64_t> length_of(const Value& value) {
  const auto size = [](size_t n) { return static_cast<int64_t>(n); };
  switch (value.kind()) {
    case Kind::Undefined:
      return 0;
    case Kind::String:
      return size(value.as<String>().length);
    case Kind::List:
    case Kind::Tuple:
      return size(value.as<List>().items.size());
    case Kind::Dict:
      return size(value.as<Dict>().items.size());
    case Kind::View:
      return size(value.as<View>().dict.as<Dict>().items.size());
    case Kind::Range:
      return value.as<Range>().length;
    default:
      return std::nullopt;
  }
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::Missing:
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
    case Kind::Integer:
    case Kind::Float:
      return value.number() != 0;
    default:
      return length_of(value).value_or(1) != 0;
  }
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::Missing:
    case Kind::Undefined:
      return "Undefined";
    case Kind::None:
      return "NoneType";
    case Kind::Bool:
      return "bool";
    case Kind::Integer:
      return "int";
    case Kind::Float:
      return "float";
    case Kind::String:
      return "str";
    case Kind::List:
      return "list";
    case Kind::Tuple:
      return "tuple";
    case Kind::Dict:
      return "dict";
    case Kind::Range:
      return "range";
    case Kind::View:
      return "dict view";
    case Kind::Generator:
      return "generator";
    case Kind::Namespace:
      return "Namespace";
    case Kind::Loop:
      return "LoopContext";
    case Kind::Method:
      return "builtin_function_or_method";
    case Kind::Function:
      return "function";
    case Kind::Macro:
      return "Macro";
  }
  return "?";
}

namespace {

bool equal_items(Meter& meter, const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(meter, a[i], b[i])) return false;
  return true;
}

bool equal_dicts(Meter& meter, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Value* other = b.find(meter, key);
    if (other == nullptr || !equal(meter, value, *other)) return false;
  }
  return true;
}

bool equal_ranges(const Range& a, const Range& b) {
  if (a.length != b.length) return false;
  return a.length == 0 || (a.begin == b.begin && (a.length == 1 || a.step == b.step));
}

// Exact, as Python compares: no rounding of the integer. -1, 0, 1; 2 for NaN.
int compare_numbers(const Value& a, const Value& b) {
  const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; };
  if (a.is_whole() && b.is_whole()) return order(a.integer(), b.integer());
  if (a.is(Kind::Float) && b.is(Kind::Float)) return order(a.number(), b.number());
  if (a.is(Kind::Float)) {
    const int other = compare_numbers(b, a);
    return other == 2 ? 2 : -other;
  }
  const double y = b.number();
  if (std::isnan(y)) return 2;
  if (y >= 0x1p63) return -1;
  if (y < -0x1p63) return 1;
  const auto whole = static_cast<int64_t>(y);
  if (a.integer() != whole) return order(a.integer(), whole);
  return order(0.0, y - static_cast<double>(whole));
}

}  // namespace

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  if (a.object() != nullptr && a.object() == b.object()) return true;
  switch (a.kind()) {
    case Kind::Missing:
    case Kind::Undefined:
    case Kind::None:
      return true;
    case Kind::String:
      meter.scan(std::min(a.text().bytes.size(), b.text().bytes.size()));
      return a.text().bytes == b.text().bytes;
    case Kind::List:
    case Kind::Tuple:
      return equal_items(meter, a.as<List>().items, b.as<List>().items);
    case Kind::Dict:
      return equal_dicts(meter, a.as<Dict>(), b.as<Dict>());
    case Kind::Range:
      return equal_ranges(a.as<Range>(), b.as<Range>());
    case Kind::Namespace:
      return a.space() == b.space();
    case Kind::Function:
      return a.as<Function>().name == b.as<Function>().name;
    case Kind::View:
    case Kind::Method:
      throw Error(ErrorKind::Input, cat("comparison of a ", type_name(a), " is not supported"));
    default:
      return false;  // Loop, Generator, Macro: themselves alone
  }
}

bool less(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is(Kind::String) && b.is(Kind::String)) {
    meter.scan(std::min(a.text().bytes.size(), b.text().bytes.size()));
    return a.text().bytes < b.text().bytes;  // UTF-8 has the order of code points
  }
  for (const Value* v : {&a, &b})
    MINFER_REQUIRE(Input, !v->is(Kind::Undefined), v->why());
  const bool sequences = a.kind() == b.kind() && (a.is(Kind::List) || a.is(Kind::Tuple));
  MINFER_REQUIRE(Input, sequences, "'<' not supported between instances of '", type_name(a),
                 "' and '", type_name(b), "'");
  const Values &x = a.as<List>().items, &y = b.as<List>().items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!equal(meter, x[i], y[i])) return less(meter, x[i], y[i]);
  return x.size() < y.size();
}

size_t hash_of(Meter& meter, const Value& value) {
  meter.step();
  switch (value.kind()) {
    case Kind::None:
    case Kind::Undefined:
      return static_cast<size_t>(value.kind());
    case Kind::Bool:
    case Kind::Integer:
      return hash_integer(value.integer());
    case Kind::Float: {
      const double x = value.number();
      const bool whole = x >= -0x1p62 && x <= 0x1p62 && x == std::floor(x);
      return whole ? hash_integer(static_cast<int64_t>(x)) : std::hash<double>()(x);
    }
    case Kind::String:
      meter.scan(value.text().bytes.size());
      return hash_bytes(value.text().bytes);
    case Kind::Tuple: {
      size_t hash = 17;
      for (const Value& item : value.as<List>().items) hash = hash * 31 + hash_of(meter, item);
      return hash;
    }
    case Kind::List:
    case Kind::Dict:
    case Kind::View:
      throw Error(ErrorKind::Input, cat("unhashable type: '", type_name(value), "'"));
    default:
      throw Error(ErrorKind::Input,
                  cat("a ", type_name(value), " as a key or in a set is not supported"));
  }
}

}  // namespace minfer::jinja
