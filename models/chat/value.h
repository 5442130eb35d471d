#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/chat/limits.h"
#include "models/chat/text.h"

// The values of a template: those of Python's that a template can get.
namespace minfer::jinja {

enum class Kind : uint8_t {
  Missing,  // no value: an argument that was not given, a variable that is not set
  Undefined,
  None,
  Bool,
  Integer,
  Float,
  String,
  List,
  Tuple,
  Dict,
  Range,
  View,       // what dict.keys(), values() and items() return
  Generator,  // what lazy filters return; it can be iterated once
  Namespace,
  Loop,
  Method,    // of a string, list or dict, bound to it
  Function,  // a global function, by name
  Macro,
};

class Value;
struct Loop;
struct Macro;
struct Namespace;

// The items of a value one by one.
class Iterator {
 public:
  virtual ~Iterator() = default;
  virtual bool next(Value& item) = 0;  // false: there is none left
};

// A value on the heap. The meter counts its bytes while it lives.
class Object {
 public:
  virtual ~Object() {
    if (meter_ != nullptr) meter_->give_back(n_bytes_);
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  // How deep values nest in it. This is bounded, so that functions over values may recurse.
  int nesting() const { return nesting_; }

 protected:
  // A null meter is for a constant of the template.
  Object(Meter* meter, size_t n_bytes, int nesting = 1) : n_bytes_(n_bytes), nesting_(nesting) {
    MINFER_REQUIRE(Input, nesting <= kMaxNesting, "values nest deeper than ", kMaxNesting,
                   " levels");
    if (meter != nullptr) meter->take(n_bytes);
    meter_ = meter;
  }

 private:
  Meter* meter_ = nullptr;
  size_t n_bytes_;
  int nesting_;
};

class Value {
 public:
  Value() = default;
  static Value none() { return Value(Kind::None); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  static Value text(Meter* meter, Text text);
  // Text that is the template's own, not a message's.
  static Value text(Meter& meter, std::string own) {
    return text(&meter, Text(std::move(own), true));
  }
  static Value undefined(Meter& meter, std::string why);
  static Value of(Namespace* space);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const {
    return kind_ == Kind::Bool || kind_ == Kind::Integer || kind_ == Kind::Float;
  }
  bool is_whole() const { return kind_ == Kind::Bool || kind_ == Kind::Integer; }
  bool boolean() const { return scalar_.integer != 0; }
  int64_t integer() const { return scalar_.integer; }  // of a Bool too
  double number() const {                              // of every number
    return kind_ == Kind::Float ? scalar_.number : static_cast<double>(scalar_.integer);
  }
  const Text& text() const;
  const std::string& why() const;  // of an Undefined
  Namespace* space() const { return scalar_.space; }
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }
  int nesting() const { return object_ ? object_->nesting() : 0; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::Missing;
  union {
    int64_t integer = 0;
    double number;
    Namespace* space;
  } scalar_;
  std::shared_ptr<Object> object_;
};

using Values = std::vector<Value>;

struct String : Object {
  String(Meter* meter, Text t)
      : Object(meter, sizeof(String) + t.bytes.capacity() + t.flips.capacity() * 4),
        text(std::move(t)),
        length(count_code_points(text.bytes)) {}
  // The byte position of a code point, which may be the end. Walks from the nearer end.
  size_t position(Meter& meter, size_t index) const;
  const Text text;
  const size_t length;  // in code points
};

int nesting_of(const Values& values);

struct List : Object {  // and Tuple
  List(Meter& meter, Values v)
      : Object(&meter, sizeof(List) + v.capacity() * sizeof(Value), nesting_of(v) + 1),
        items(std::move(v)) {}
  const Values items;
};
Value make_list(Meter& meter, Values items);
Value make_tuple(Meter& meter, Values items);

// Items keep the order in which their keys first came.
struct Dict : Object {
  using Item = std::pair<Value, Value>;
  Dict(Meter& meter, std::vector<Item> unique_items, std::unordered_multimap<size_t, size_t> index,
       int nesting);
  const Value* find(Meter& meter, const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<Item> items;

 private:
  const std::unordered_multimap<size_t, size_t> index_;  // hash of the key to its item
};

class DictBuilder {
 public:
  explicit DictBuilder(Meter& meter) : meter_(&meter) {}
  // A later value of a key replaces an earlier one. Throws Input where the key cannot be hashed.
  void set(const Value& key, const Value& value);
  Value take();

 private:
  Meter* meter_;
  std::vector<Dict::Item> items_;
  std::unordered_multimap<size_t, size_t> index_;
  int nesting_ = 0;
};

struct Range : Object {
  Range(Meter& meter, int64_t b, int64_t e, int64_t s);
  const int64_t begin, end, step, length;
  int64_t at(int64_t index) const { return begin + index * step; }
};

enum class ViewOf : uint8_t { Keys, Values, Items };
struct View : Object {
  View(Meter& meter, Value d, ViewOf w)
      : Object(&meter, sizeof(View), d.nesting() + 1), dict(std::move(d)), which(w) {}
  const Value dict;
  const ViewOf which;
  Value at(Meter& meter, size_t index) const;
};

struct Generator : Object {
  Generator(Meter& meter, std::unique_ptr<Iterator> it, int nesting)
      : Object(&meter, 128, nesting), items(std::move(it)) {}
  const std::unique_ptr<Iterator> items;
};

struct UndefinedReason : Object {
  UndefinedReason(Meter* meter, std::string w)
      : Object(meter, sizeof(UndefinedReason) + w.capacity()), why(std::move(w)) {}
  const std::string why;
};

// The only value that can change. The run owns it, and not the values that hold it, so that it may
// hold itself.
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};

struct Method : Object {
  Method(Meter& meter, Value s, std::string n)
      : Object(&meter, sizeof(Method), s.nesting() + 1), self(std::move(s)), name(std::move(n)) {}
  const Value self;
  const std::string name;
};

struct Function : Object {
  Function(Meter* meter, std::string n) : Object(meter, sizeof(Function)), name(std::move(n)) {}
  const std::string name;
};

// ---- Python's operations on values ----

bool truthy(const Value& value);
std::string type_name(const Value& value);  // "str", "NoneType"
bool equal(Meter& meter, const Value& a, const Value& b);
bool less(Meter& meter, const Value& a, const Value& b);  // throws Input if Python has no order
size_t hash_of(Meter& meter, const Value& value);         // throws Input if Python cannot hash it
// The number of items, if Python's len() takes the value.
std::optional<int64_t> length_of(const Value& value);

// str(), repr() and json.dumps()
Text to_text(Meter& meter, const Value& value);
void add_text(TextBuilder& out, Meter& meter, const Value& value);
void add_repr(TextBuilder& out, Meter& meter, const Value& value);
std::string repr_of(double value);
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
void add_json(TextBuilder& out, Meter& meter, const Value& value, const JsonStyle& style);

// The value of a JSON text; its strings have the origin `own`. With `own_roles`, the "role" of each
// object in the outermost list counts as the template's own if it is a plain word, because
// templates write "<|" + role + "|>".
Value parse_json(Meter& meter, const std::string& name, std::string_view text, bool own,
                 bool own_roles = false);

}  // namespace minfer::jinja
