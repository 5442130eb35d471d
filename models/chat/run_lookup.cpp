#include <algorithm>
#include <string_view>

#include "models/chat/run.h"

// What value.name and value[index] are, by the rules of Jinja's sandbox.
namespace minfer::jinja {
namespace {

bool is_one_of(std::string_view name, std::string_view names) {
  // Each name has a blank on both sides.
  return names.find(" " + std::string(name) + " ") != names.npos;
}

struct TypeNames {
  std::string_view methods;  // that are supported
  std::string_view unsafe;   // that the sandbox keeps from templates
  std::string_view other;    // that Python has: refused, not undefined
};

const TypeNames& names_of(Kind kind) {
  static constexpr TypeNames kString{
      "", "",
      " casefold center encode expandtabs format format_map isalnum isalpha isascii isdecimal "
      "isidentifier isnumeric isprintable istitle ljust maketrans rjust swapcase translate zfill "};
  static constexpr TypeNames kList{" index count copy ",
                                   " append clear pop reverse insert sort extend remove ", ""};
  static constexpr TypeNames kTuple{" index count ", "", ""};
  static constexpr TypeNames kDict{" get items keys values copy ",
                                   " clear pop popitem setdefault update ", " fromkeys "};
  static constexpr TypeNames kNumber{
      "", "",
      " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real "
      "to_bytes fromhex hex is_integer "};
  static constexpr TypeNames kRange{"", "", " start stop step index count "};
  static constexpr TypeNames kView{"", "", " isdisjoint mapping "};
  static constexpr TypeNames kMacro{
      "", "", " name arguments catch_kwargs catch_varargs caller explicit_caller "};
  static constexpr TypeNames kNothing{"", "", ""};
  switch (kind) {
    case Kind::String:
      return kString;
    case Kind::List:
      return kList;
    case Kind::Tuple:
      return kTuple;
    case Kind::Dict:
      return kDict;
    case Kind::Bool:
    case Kind::Integer:
    case Kind::Float:
      return kNumber;
    case Kind::Range:
      return kRange;
    case Kind::View:
      return kView;
    case Kind::Macro:
      return kMacro;
    default:
      return kNothing;
  }
}

std::string object_name(const Value& value) {
  return value.is(Kind::None) ? "None" : type_name(value) + " object";
}

[[noreturn]] void refuse(const Value& value, const std::string& name) {
  throw Error(ErrorKind::Input, cat("the attribute \"", shortened(name), "\" of a ",
                                    type_name(value), " is not supported"));
}

Value loop_attribute(Meter& meter, Loop& loop, const std::string& name, const Value& self) {
  const bool looks_around = is_one_of(name, " last previtem nextitem changed ") ||
                            (!loop.length && is_one_of(name, " length revindex revindex0 "));
  MINFER_REQUIRE(Input, !looks_around || !loop.closed(), "loop.", name,
                 " behind its loop is not supported");
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(loop.peek().is(Kind::Missing));
  if (name == "length") return Value::integer(loop.total(meter));
  if (name == "revindex") return Value::integer(loop.total(meter) - loop.index0);
  if (name == "revindex0") return Value::integer(loop.total(meter) - loop.index0 - 1);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") {
    if (loop.index0 == 0 || loop.before.is(Kind::Missing))
      return Value::undefined(meter, "there is no previous item");
    return loop.before;
  }
  if (name == "nextitem") {
    const Value& next = loop.peek();
    return next.is(Kind::Missing) ? Value::undefined(meter, "there is no next item") : next;
  }
  if (name == "cycle" || name == "changed")
    return {Kind::Method, std::make_shared<Method>(meter, self, name)};
  return {};
}

}  // namespace

// Missing where the type has no such attribute.
Value Run::attribute_of_type(const Value& value, const std::string& name) {
  meter_.step(static_cast<int64_t>(name.size() / 8));
  if (value.is(Kind::Namespace)) {
    for (const auto& [known, item] : value.space()->items) {
      meter_.step();
      if (known != name) continue;
      if (name.starts_with('_')) refuse(value, name);
      return item;
    }
    if (name.starts_with("__")) refuse(value, name);
    return {};
  }
  if (name.starts_with("__")) refuse(value, name);
  if (value.is(Kind::Loop)) {
    Value found = loop_attribute(meter_, value.as<Loop>(), name, value);
    // The rest of what a loop has is its own business.
    if (found.is(Kind::Missing) && name.starts_with('_')) refuse(value, name);
    return found;
  }
  const bool opaque =
      value.is(Kind::Generator) || value.is(Kind::Method) || value.is(Kind::Function);
  if (opaque || (value.is(Kind::Macro) && name.starts_with('_'))) refuse(value, name);
  const TypeNames& names = names_of(value.kind());
  const bool method =
      value.is(Kind::String) ? is_string_method(name) : is_one_of(name, names.methods);
  if (method) return {Kind::Method, std::make_shared<Method>(meter_, value, name)};
  if (is_one_of(name, names.unsafe)) {
    return undefined(
        cat("access to attribute '", name, "' of '", type_name(value), "' object is unsafe."));
  }
  if (is_one_of(name, names.other)) refuse(value, name);
  return {};
}

Value Run::get_attribute(const Value& value, const std::string& name) {
  MINFER_REQUIRE(Input, !value.is(Kind::Undefined), value.why());
  Value found = attribute_of_type(value, name);
  if (!found.is(Kind::Missing)) return found;
  if (value.is(Kind::Dict)) {
    meter_.scan(name.size());
    if (const Value* item = value.as<Dict>().find(name)) return *item;
  }
  return undefined(cat("'", object_name(value), "' has no attribute '", shortened(name), "'"));
}

namespace {

// The item of a sequence, or Missing.
Value item_at(Run& run, const Value& value, const Value& index) {
  if (!index.is_whole()) return {};
  const int64_t length = length_of(value).value_or(0);
  int64_t at = index.integer();
  if (at < 0) at += length;
  if (at < 0 || at >= length) return {};
  switch (value.kind()) {
    case Kind::List:
    case Kind::Tuple:
      return value.as<List>().items[static_cast<size_t>(at)];
    case Kind::Range:
      return Value::integer(value.as<Range>().at(at));
    case Kind::String: {
      const String& string = value.as<String>();
      const size_t begin = string.position(run.meter(), static_cast<size_t>(at));
      size_t n = 0;
      code_point_at(string.text.bytes, begin, n);
      return sliced(run, string.text, begin, begin + n);
    }
    default:
      return {};
  }
}

bool is_hashable(const Value& value) {
  if (value.is(Kind::List) || value.is(Kind::Dict) || value.is(Kind::View)) return false;
  return !value.is(Kind::Tuple) || std::ranges::all_of(value.as<List>().items, is_hashable);
}

}  // namespace

Value Run::get_item(const Value& value, const Value& index) {
  MINFER_REQUIRE(Input, !value.is(Kind::Undefined), value.why());
  if (value.is(Kind::Dict)) {
    if (is_hashable(index)) {
      if (const Value* item = value.as<Dict>().find(meter_, index)) return *item;
    }
  } else {
    Value found = item_at(*this, value, index);
    if (!found.is(Kind::Missing)) return found;
  }
  if (!index.is(Kind::String))
    return undefined(cat(object_name(value), " has no element of this index"));
  const std::string& name = index.text().bytes;
  Value found = attribute_of_type(value, name);
  if (!found.is(Kind::Missing)) return found;
  return undefined(cat("'", object_name(value), "' has no attribute '", shortened(name), "'"));
}

bool Run::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::String: {
      MINFER_REQUIRE(Input, item.is(Kind::String),
                     "'in <string>' requires string as left operand, not ", type_name(item));
      const std::string &text = container.text().bytes, &part = item.text().bytes;
      meter_.scan(text.size() + part.size());
      return part.empty() || find_text(text, part, 0) != std::string::npos;
    }
    case Kind::Dict:
      return container.as<Dict>().find(meter_, item) != nullptr;
    case Kind::View:
      if (container.as<View>().which == ViewOf::Keys)
        return contains(container.as<View>().dict, item);
      [[fallthrough]];
    default: {
      const std::unique_ptr<Iterator> items = iterate(container);
      Value each;
      while (items->next(each))
        if (equal(meter_, each, item)) return true;
      return false;
    }
  }
}

// ---- iteration ----

namespace {

// Items by index.
class IndexIterator : public Iterator {
 public:
  IndexIterator(Meter& meter, const Value& value)
      : meter_(meter), value_(value), length_(*length_of(value)) {}
  bool next(Value& item) override {
    meter_.step();
    if (at_ >= length_) return false;
    const auto at = static_cast<size_t>(at_++);
    switch (value_.kind()) {
      case Kind::List:
      case Kind::Tuple:
        item = value_.as<List>().items[at];
        break;
      case Kind::Range:
        item = Value::integer(value_.as<Range>().at(at_ - 1));
        break;
      case Kind::View:
        item = value_.as<View>().at(meter_, at);
        break;
      default:
        item = value_.as<Dict>().items[at].first;
    }
    return true;
  }

 private:
  Meter& meter_;
  const Value value_;
  const int64_t length_;
  int64_t at_ = 0;
};

class CharacterIterator : public Iterator {
 public:
  CharacterIterator(Run& run, const Value& value) : run_(run), value_(value) {}
  bool next(Value& item) override {
    run_.meter().step();
    const Text& text = value_.text();
    if (at_ >= text.bytes.size()) return false;
    size_t n = 0;
    code_point_at(text.bytes, at_, n);
    TextBuilder one(run_.meter());
    one.add(text, at_, at_ + n);
    item = run_.text(one.take());
    at_ += n;
    return true;
  }

 private:
  Run& run_;
  const Value value_;
  size_t at_ = 0;
};

class NoItems : public Iterator {
 public:
  bool next(Value&) override { return false; }
};

// Takes from a generator, which others may take from too.
class SharedIterator : public Iterator {
 public:
  explicit SharedIterator(const Value& value) : value_(value) {}
  bool next(Value& item) override { return value_.as<Generator>().items->next(item); }

 private:
  const Value value_;
};

}  // namespace

std::unique_ptr<Iterator> Run::iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined:
    case Kind::Missing:
      return std::make_unique<NoItems>();
    case Kind::String:
      return std::make_unique<CharacterIterator>(*this, value);
    case Kind::List:
    case Kind::Tuple:
    case Kind::Dict:
    case Kind::View:
    case Kind::Range:
      return std::make_unique<IndexIterator>(meter_, value);
    case Kind::Generator:
      return std::make_unique<SharedIterator>(value);
    case Kind::Loop:
      throw Error(ErrorKind::Input, "iterating over the variable \"loop\" is not supported");
    default:
      throw Error(ErrorKind::Input, cat("'", type_name(value), "' object is not iterable"));
  }
}

Values Run::items_of(const Value& value) {
  const std::unique_ptr<Iterator> items = iterate(value);
  Values all;
  Value item;
  while (items->next(item)) {
    meter_.require_room((all.size() + 1) * sizeof(Value));
    all.push_back(std::move(item));
  }
  return all;
}

// ---- the variable `loop` ----

bool Loop::next(Value& item) {
  Value taken;
  if (after) {
    taken = std::move(*after);
    after.reset();
    if (taken.is(Kind::Missing)) return false;
  } else if (!items || !items->next(taken)) {
    return false;
  }
  ++index0;
  before = std::move(current);
  current = taken;
  item = std::move(taken);
  return true;
}

const Value& Loop::peek() {
  if (!after) {
    Value item;
    if (!items || !items->next(item)) item = {};
    after = std::move(item);
  }
  return *after;
}

// Items that come one by one are read to the end to be counted, as Jinja does.
int64_t Loop::total(Meter& meter) {
  if (length) return *length;
  class Rest : public Iterator {
   public:
    explicit Rest(Values rest) : rest_(std::move(rest)) {}
    bool next(Value& item) override {
      if (at_ >= rest_.size()) return false;
      item = rest_[at_++];
      return true;
    }

   private:
    Values rest_;
    size_t at_ = 0;
  };
  Values rest;
  Value item;
  while (items && items->next(item)) {
    meter.step();
    meter.require_room((rest.size() + 1) * sizeof(Value));
    rest.push_back(std::move(item));
  }
  const bool peeked = after && !after->is(Kind::Missing);
  length = static_cast<int64_t>(rest.size()) + index0 + 1 + (peeked ? 1 : 0);
  items = std::make_unique<Rest>(std::move(rest));
  return *length;
}

void Loop::close() {
  items.reset();
  before = current = last_changed = {};
  after.reset();
}

}  // namespace minfer::jinja
