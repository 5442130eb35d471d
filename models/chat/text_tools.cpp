#include <algorithm>
#include <cstring>

#include "models/chat/run.h"

namespace minfer::jinja {
namespace {

bool has_code(std::string_view chars, std::string_view one) {
  return chars.find(one) != chars.npos;  // whole code points: UTF-8 is unambiguous
}

// The length of the code point that ends at `end`.
size_t last_bytes(std::string_view text, size_t end) {
  size_t n = 1;
  while ((text[end - n] & '\xc0') == '\x80') ++n;
  return n;
}

}  // namespace

size_t find_text(std::string_view text, std::string_view part, size_t at) {
  if (at > text.size()) return std::string_view::npos;
  const void* const found = ::memmem(text.data() + at, text.size() - at, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

Value sliced(Run& run, const Text& text, size_t begin, size_t end) {
  TextBuilder out(run.meter());
  out.add(text, begin, end);
  Text part = out.take();
  part.markup = text.markup;
  return run.text(std::move(part));
}

Value stripped(Run& run, const Value& value, const Value& chars, char mode) {
  const Text& text = value.text();
  const std::string_view bytes = text.bytes;
  run.meter().scan(bytes.size());
  size_t begin = 0, end = bytes.size();
  if (chars.is(Kind::Missing) || chars.is(Kind::None)) {
    if (mode != 'r') begin = skip_space(bytes, 0);
    if (mode != 'l') end = begin + skip_space_back(bytes.substr(begin), end - begin);
    return sliced(run, text, begin, end);
  }
  const std::string_view set = text_of(chars, "the characters to strip").bytes;
  const auto charge = [&] { run.meter().step(static_cast<int64_t>(1 + set.size() / 16)); };
  if (mode != 'r') {
    for (size_t n = 0; begin < end; begin += n) {
      code_point_at(bytes, begin, n);
      charge();
      if (!has_code(set, bytes.substr(begin, n))) break;
    }
  }
  if (mode != 'l') {
    for (size_t n = 0; begin < end; end -= n) {
      n = last_bytes(bytes, end);
      charge();
      if (!has_code(set, bytes.substr(end - n, n))) break;
    }
  }
  return sliced(run, text, begin, end);
}

Value replaced(Run& run, const Text& text, const Text& from, const Text& to, int64_t count) {
  const std::string_view bytes = text.bytes;
  TextBuilder out(run.meter());
  run.meter().scan(bytes.size());
  size_t done = 0;
  for (size_t at = 0; count != 0; --count) {
    size_t found = at;
    if (!from.bytes.empty()) {
      found = find_text(bytes, from.bytes, at);
      if (found == bytes.npos) break;
    }
    out.add(text, done, found).add(to);
    run.meter().step();
    done = found + from.bytes.size();
    at = done;
    if (!from.bytes.empty()) continue;
    // Between all code points, and at both ends.
    if (at >= bytes.size()) break;
    size_t n = 0;
    code_point_at(bytes, at, n);
    at += n;
  }
  out.add(text, done, bytes.size());
  Text result = out.take();
  result.markup = text.markup;
  return run.text(std::move(result));
}

namespace {

void add_in_case(TextBuilder& out, Meter& meter, const Text& text, size_t begin, size_t end,
                 Case which) {
  meter.step(static_cast<int64_t>((end - begin) / 8));
  for (size_t n = 0; begin < end; begin += n) {
    const char32_t code = code_point_at(text.bytes, begin, n);
    out.add(in_case(code, which), text.own_at(begin));
  }
}

}  // namespace

Value in_case(Run& run, const Text& text, Case which) {
  TextBuilder out(run.meter());
  add_in_case(out, run.meter(), text, 0, text.bytes.size(), which);
  Text result = out.take();
  result.markup = text.markup;
  return run.text(std::move(result));
}

Value capitalized(Run& run, const Text& text) {
  if (text.bytes.empty()) return run.text(text);
  TextBuilder out(run.meter());
  size_t n = 0;
  code_point_at(text.bytes, 0, n);
  add_in_case(out, run.meter(), text, 0, n, Case::Title);
  add_in_case(out, run.meter(), text, n, text.bytes.size(), Case::Lower);
  Text result = out.take();
  result.markup = text.markup;
  return run.text(std::move(result));
}

Values split_lines(Run& run, const Text& text, bool keep_ends) {
  const std::string_view bytes = text.bytes;
  run.meter().step(static_cast<int64_t>(bytes.size() / 8));
  const auto ends_line = [](char32_t code) {
    return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
  };
  Values lines;
  size_t begin = 0;
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    if (!ends_line(code_point_at(bytes, at, n))) continue;
    const size_t end = at;
    if (bytes.substr(at).starts_with("\r\n")) n = 2;
    run.meter().require_room((lines.size() + 1) * sizeof(Value));
    lines.push_back(sliced(run, text, begin, keep_ends ? at + n : end));
    begin = at + n;
  }
  if (begin < bytes.size()) lines.push_back(sliced(run, text, begin, bytes.size()));
  return lines;
}

int64_t whole(const Value& value, const char* what) {
  MINFER_REQUIRE(Input, value.is_whole(), what, ": '", type_name(value), "' is no integer");
  return value.integer();
}

const Text& text_of(const Value& value, const char* what) {
  MINFER_REQUIRE(Input, value.is(Kind::String), what, " must be a str, not ", type_name(value));
  return value.text();
}

Value formatted(Run& run, const Text& format, const Value& arguments) {
  MINFER_REQUIRE(Input, !format.markup, "formatting a text marked as safe is not supported");
  Values one{arguments};
  const bool tuple = arguments.is(Kind::Tuple);
  const Values& values = tuple ? arguments.as<List>().items : one;
  TextBuilder out(run.meter());
  size_t done = 0, used = 0;
  run.meter().scan(format.bytes.size());
  for (size_t at = format.bytes.find('%'); at != format.bytes.npos;
       at = format.bytes.find('%', done)) {
    out.add(format, done, at);
    const char letter = at + 1 < format.bytes.size() ? format.bytes[at + 1] : ' ';
    done = at + 2;
    if (letter == '%') {
      out.add("%", format.own_at(at));
      continue;
    }
    MINFER_REQUIRE(Input, std::string_view("srdi").find(letter) != std::string_view::npos,
                   "formats other than %s, %r, %d, %i and %% are not supported");
    MINFER_REQUIRE(Input, used < values.size(), "not enough arguments for format string");
    const Value& value = values[used++];
    if (letter == 's') {
      add_text(out, run.meter(), value);
    } else if (letter == 'r') {
      add_repr(out, run.meter(), value);
    } else {
      MINFER_REQUIRE(Input, value.is_whole(), "%d of what is no integer is not supported");
      out.add(std::to_string(value.integer()));
    }
  }
  // A mapping may stay unused, and so may what is not a tuple but can be indexed.
  const bool may_stay =
      !tuple && (arguments.is(Kind::Dict) || arguments.is(Kind::List) || arguments.is(Kind::Range));
  MINFER_REQUIRE(Input, used == values.size() || may_stay,
                 "not all arguments converted during string formatting");
  out.add(format, done, format.bytes.size());
  return run.text(out.take());
}

AttributeGetter::AttributeGetter(Run& run, const Value& attribute, Value otherwise)
    : otherwise_(std::move(otherwise)) {
  if (attribute.is(Kind::Missing) || attribute.is(Kind::None)) return;
  if (!attribute.is(Kind::String)) {
    parts_.push_back(attribute);
    return;
  }
  const std::string_view path = attribute.text().bytes;
  MINFER_REQUIRE(Input, std::ranges::count(path, '.') < kMaxNesting, "an attribute nests too deep");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part(path.substr(begin, end - begin));
    const bool digits =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    parts_.push_back(digits ? Value::integer(std::stoll(part)) : run.text(part));
    begin = end + 1;
  }
}

Value AttributeGetter::get(Run& run, Value item) const {
  for (const Value& part : parts_) {
    item = run.get_item(item, part);
    if (item.is(Kind::Undefined) && !otherwise_.is(Kind::Missing) && !otherwise_.is(Kind::None))
      item = otherwise_;
  }
  return item;
}

Value ignoring_case(Run& run, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::String)) return value;
  return in_case(run, value.text(), Case::Lower);
}

}  // namespace minfer::jinja
