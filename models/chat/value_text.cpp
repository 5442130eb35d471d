#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/chat/run.h"
#include "models/chat/value.h"

namespace minfer::jinja {
namespace {

std::string hex(char32_t code, int digits) {
  std::string out;
  for (int i = digits - 1; i >= 0; --i) out += "0123456789abcdef"[code >> (4 * i) & 15];
  return out;
}

// Python's escape of a character that is not printable.
std::string escaped(char32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  if (code < 0x100) return "\\x" + hex(code, 2);
  return code < 0x10000 ? "\\u" + hex(code, 4) : "\\U" + hex(code, 8);
}

// Copies `text`, each character for which replace(code, escape) is true replaced by `escape`.
template <typename Replace>
void add_replaced(TextBuilder& out, Meter& meter, const Text& text, const Replace& replace) {
  const std::string& bytes = text.bytes;
  meter.step(static_cast<int64_t>(bytes.size() / 8));
  size_t done = 0;
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    const char32_t code = code_point_at(bytes, at, n);
    std::string escape;
    if (!replace(code, escape)) continue;
    out.add(text, done, at);
    out.add(escape, text.own_at(at));
    done = at + n;
  }
  out.add(text, done, bytes.size());
}

void add_string_repr(TextBuilder& out, Meter& meter, const Text& text) {
  const auto has = [&](char c) { return text.bytes.find(c) != std::string::npos; };
  const char32_t quote = has('\'') && !has('"') ? '"' : '\'';
  const std::string quoted(1, static_cast<char>(quote));
  if (text.markup) out.add("Markup(");
  out.add(quoted);
  add_replaced(out, meter, text, [&](char32_t code, std::string& escape) {
    if (code == quote || code == '\\')
      escape = {'\\', static_cast<char>(code)};
    else if (!is_printable(code))
      escape = escaped(code);
    else
      return false;
    return true;
  });
  out.add(quoted);
  if (text.markup) out.add(")");
}

// Calls add(item) with ", " between.
template <typename Items, typename Add>
void add_listed(TextBuilder& out, Meter& meter, const Items& items, const Add& add) {
  bool first = true;
  for (const auto& item : items) {
    meter.step();
    if (!first) out.add(", ");
    first = false;
    add(item);
  }
}

void add_items_repr(TextBuilder& out, Meter& meter, const std::vector<Dict::Item>& items) {
  out.add("{");
  add_listed(out, meter, items, [&](const Dict::Item& item) {
    add_repr(out, meter, item.first);
    out.add(": ");
    add_repr(out, meter, item.second);
  });
  out.add("}");
}

void add_sequence_repr(TextBuilder& out, Meter& meter, const Value& value) {
  const Values& items = value.as<List>().items;
  const bool tuple = value.is(Kind::Tuple);
  out.add(tuple ? "(" : "[");
  add_listed(out, meter, items, [&](const Value& item) { add_repr(out, meter, item); });
  out.add(!tuple ? "]" : items.size() == 1 ? ",)" : ")");
}

void add_view_repr(TextBuilder& out, Meter& meter, const View& view) {
  constexpr const char* kNames[] = {"dict_keys([", "dict_values([", "dict_items(["};
  out.add(kNames[static_cast<size_t>(view.which)]);
  std::vector<size_t> places(view.dict.as<Dict>().items.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  add_listed(out, meter, places, [&](size_t i) { add_repr(out, meter, view.at(meter, i)); });
  out.add("])");
}

}  // namespace

std::string repr_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto [end, fault] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string digits(buffer, end);
  const size_t mark = digits.find('e');
  const int exponent = std::stoi(digits.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return digits;  // "1e+16" in both
  const bool negative = digits[0] == '-';
  digits = digits.substr(negative, mark - negative);
  std::erase(digits, '.');
  if (exponent < 0) {
    digits = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= whole) digits.resize(whole + 1, '0');
    digits.insert(whole, ".");
  }
  return (negative ? "-" : "") + digits;
}

void add_repr(TextBuilder& out, Meter& meter, const Value& value) {
  meter.step();
  switch (value.kind()) {
    case Kind::Missing:
    case Kind::Undefined:
      out.add("Undefined");
      return;
    case Kind::None:
      out.add("None");
      return;
    case Kind::Bool:
      out.add(value.boolean() ? "True" : "False");
      return;
    case Kind::Integer:
      out.add(std::to_string(value.integer()));
      return;
    case Kind::Float:
      out.add(repr_of(value.number()));
      return;
    case Kind::String:
      return add_string_repr(out, meter, value.text());
    case Kind::List:
    case Kind::Tuple:
      return add_sequence_repr(out, meter, value);
    case Kind::Dict:
      return add_items_repr(out, meter, value.as<Dict>().items);
    case Kind::View:
      return add_view_repr(out, meter, value.as<View>());
    case Kind::Range: {
      const Range& range = value.as<Range>();
      out.add(cat("range(", range.begin, ", ", range.end));
      if (range.step != 1) out.add(cat(", ", range.step));
      out.add(")");
      return;
    }
    case Kind::Macro:
      out.add(cat("<Macro ", value.as<Macro>().shown(), ">"));
      return;
    default:
      throw Error(ErrorKind::Input, cat("the text of a ", type_name(value), " is not supported"));
  }
}

void add_text(TextBuilder& out, Meter& meter, const Value& value) {
  if (value.is(Kind::String))
    out.add(value.text());
  else if (!value.is(Kind::Undefined) && !value.is(Kind::Missing))
    add_repr(out, meter, value);
}

Text to_text(Meter& meter, const Value& value) {
  if (value.is(Kind::String)) return value.text();
  TextBuilder out(meter);
  add_text(out, meter, value);
  return out.take();
}

// ---- json.dumps ----

namespace {

class JsonWriter {
 public:
  JsonWriter(TextBuilder& out, Meter& meter, const JsonStyle& style)
      : out_(out), meter_(meter), style_(style) {}

  void add(const Value& value) {
    meter_.step();
    switch (value.kind()) {
      case Kind::String:
        return add_string(value.text());
      case Kind::List:
      case Kind::Tuple:
        return add_list(value.as<List>().items);
      case Kind::Dict:
        return add_dict(value.as<Dict>());
      default:
        out_.add(scalar(value, "Object of type ", " is not JSON serializable"));
    }
  }

 private:
  std::string scalar(const Value& value, const char* before, const char* behind) const {
    if (value.is(Kind::None)) return "null";
    if (value.is(Kind::Bool)) return value.boolean() ? "true" : "false";
    if (value.is(Kind::Integer)) return std::to_string(value.integer());
    MINFER_REQUIRE(Input, value.is(Kind::Float), before, type_name(value), behind);
    if (std::isnan(value.number())) return "NaN";
    if (std::isinf(value.number())) return value.number() > 0 ? "Infinity" : "-Infinity";
    return repr_of(value.number());
  }

  void add_string(const Text& text) {
    out_.add("\"");
    add_replaced(out_, meter_, text, [&](char32_t code, std::string& escape) {
      switch (code) {
        case '"':
        case '\\':
          escape = {'\\', static_cast<char>(code)};
          return true;
        case '\b':
          escape = "\\b";
          return true;
        case '\f':
          escape = "\\f";
          return true;
        case '\n':
        case '\r':
        case '\t':
          escape = escaped(code);
          return true;
        default:
          if (code >= 0x20 && (code < 0x7f || !style_.ascii)) return false;
          if (code == 0x7f) return false;
          escape = code < 0x10000 ? "\\u" + hex(code, 4)
                                  : "\\u" + hex(0xd7c0 + (code >> 10), 4) + "\\u" +
                                        hex(0xdc00 + (code & 0x3ff), 4);
          return true;
      }
    });
    out_.add("\"");
  }

  void add_break() {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < level_; ++i) out_.add(*style_.indent);
  }

  // Calls add_one(item) for each.
  template <typename Items, typename AddOne>
  void add_enclosed(const Items& items, const char* open, const char* close,
                    const AddOne& add_one) {
    out_.add(open);
    ++level_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_.add(style_.item_separator);
      first = false;
      add_break();
      add_one(item);
    }
    --level_;
    if (!items.empty()) add_break();
    out_.add(close);
  }

  void add_list(const Values& items) {
    add_enclosed(items, "[", "]", [&](const Value& item) { add(item); });
  }

  void add_dict(const Dict& dict) {
    std::vector<Dict::Item> items = dict.items;
    meter_.step(static_cast<int64_t>(items.size()));
    if (style_.sort_keys) {
      std::ranges::stable_sort(items, [&](const Dict::Item& a, const Dict::Item& b) {
        return less(meter_, a.first, b.first);
      });
    }
    add_enclosed(items, "{", "}", [&](const Dict::Item& item) {
      if (item.first.is(Kind::String)) {
        add_string(item.first.text());
      } else {
        out_.add("\"" +
                 scalar(item.first, "keys must be str, int, float, bool or None, not ", "") + "\"");
      }
      out_.add(style_.key_separator);
      add(item.second);
    });
  }

  TextBuilder& out_;
  Meter& meter_;
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

void add_json(TextBuilder& out, Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter(out, meter, style).add(value);
}

}  // namespace minfer::jinja
