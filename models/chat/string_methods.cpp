#include <algorithm>
#include <array>

#include "models/chat/run.h"

// Python's methods of str.
namespace minfer::jinja {
namespace {

constexpr std::array<const char*, 27> kMethods = {
    "strip",      "lstrip",       "rstrip",       "split",    "rsplit",     "splitlines",
    "replace",    "startswith",   "endswith",     "upper",    "lower",      "capitalize",
    "title",      "find",         "rfind",        "index",    "rindex",     "count",
    "join",       "isdigit",      "isspace",      "islower",  "isupper",    "removeprefix",
    "removesuffix", "partition",  "rpartition"};

// Pieces between white space, from the left; the last one keeps what is left after `max` splits.
Values split_space(Run& run, const Text& text, int64_t max) {
  const std::string_view bytes = text.bytes;
  Values parts;
  run.meter().step(static_cast<int64_t>(bytes.size() / 16));
  size_t at = skip_space(bytes, 0);
  while (at < bytes.size()) {
    size_t end = at;
    for (size_t n = 0; end < bytes.size() && !is_space(code_point_at(bytes, end, n)); end += n) {
    }
    if (max >= 0 && static_cast<int64_t>(parts.size()) == max) end = bytes.size();
    run.meter().step();
    parts.push_back(sliced(run, text, at, end));
    at = skip_space(bytes, end);
  }
  return parts;
}

Values split_by(Run& run, const Text& text, const std::string& separator, int64_t max) {
  const std::string_view bytes = text.bytes;
  Values parts;
  size_t begin = 0;
  run.meter().scan(bytes.size());
  while (max < 0 || static_cast<int64_t>(parts.size()) < max) {
    const size_t found = find_text(bytes, separator, begin);
    if (found == bytes.npos) break;
    run.meter().step();
    parts.push_back(sliced(run, text, begin, found));
    begin = found + separator.size();
  }
  parts.push_back(sliced(run, text, begin, bytes.size()));
  return parts;
}

// The last place of `part` that ends at or before `end`; npos where there is none.
size_t find_last(Meter& meter, std::string_view text, std::string_view part, size_t end) {
  if (part.size() > end) return text.npos;
  for (size_t at = end - part.size();; --at) {
    if (text[at] == part[0]) {
      meter.step(static_cast<int64_t>(1 + part.size() / 32));
      if (text.substr(at, part.size()) == part) return at;
    }
    if (at == 0) return text.npos;
  }
}

Values split_from_right(Run& run, const Text& text, const Value& separator, int64_t max) {
  MINFER_REQUIRE(Input, separator.is(Kind::String),
                 "rsplit() at white space with a limit is not supported");
  const std::string_view bytes = text.bytes, part = separator.text().bytes;
  Values parts;
  size_t end = bytes.size();
  run.meter().scan(bytes.size());
  while (static_cast<int64_t>(parts.size()) < max) {
    const size_t found = find_last(run.meter(), bytes, part, end);
    if (found == bytes.npos) break;
    parts.push_back(sliced(run, text, found + part.size(), end));
    end = found;
  }
  parts.push_back(sliced(run, text, 0, end));
  std::ranges::reverse(parts);
  return parts;
}

Value split(Run& run, const Text& text, const std::string& name, const CallArgs& args) {
  const Bound bound(name.c_str(), args, {"sep", "maxsplit"}, 0);
  const int64_t max = bound.has(1) ? whole(bound[1], "maxsplit") : -1;
  const bool separated = bound.has(0) && !bound[0].is(Kind::None);
  if (separated) {
    MINFER_REQUIRE(Input, !text_of(bound[0], "the separator").bytes.empty(), "empty separator");
  }
  Values parts;
  if (name == "rsplit" && max >= 0)
    parts = split_from_right(run, text, bound[0], max);
  else if (separated)
    parts = split_by(run, text, bound[0].text().bytes, max);
  else
    parts = split_space(run, text, max);
  return make_list(run.meter(), std::move(parts));
}

Value begins_or_ends(Run& run, const Text& text, const std::string& name, const CallArgs& args) {
  const Bound bound(name.c_str(), args, {""}, 1);
  const auto holds = [&](const Value& affix) {
    const std::string& bytes = text_of(affix, "what a text begins or ends with").bytes;
    run.meter().step();
    run.meter().scan(bytes.size());
    return name == "startswith" ? text.bytes.starts_with(bytes) : text.bytes.ends_with(bytes);
  };
  if (!bound[0].is(Kind::Tuple)) return Value::boolean(holds(bound[0]));
  return Value::boolean(std::ranges::any_of(bound[0].as<List>().items, holds));
}

Value find(Run& run, const Text& text, const std::string& name, const CallArgs& args) {
  const Bound bound(name.c_str(), args, {""}, 1);
  const std::string& part = text_of(bound[0], "what is looked for").bytes;
  MINFER_REQUIRE(Input, !part.empty(), name, "() of an empty text is not supported");
  run.meter().scan(text.bytes.size());
  const bool last = name[0] == 'r';
  const size_t found = last ? find_last(run.meter(), text.bytes, part, text.bytes.size())
                            : find_text(text.bytes, part, 0);
  if (found != text.bytes.npos) {
    return Value::integer(static_cast<int64_t>(
        count_code_points(std::string_view(text.bytes).substr(0, found))));
  }
  MINFER_REQUIRE(Input, name.ends_with("find"), "substring not found");
  return Value::integer(-1);
}

Value count(Run& run, const Text& text, const CallArgs& args) {
  const Bound bound("count", args, {""}, 1);
  const std::string& part = text_of(bound[0], "what is counted").bytes;
  run.meter().scan(text.bytes.size());
  if (part.empty())
    return Value::integer(static_cast<int64_t>(count_code_points(text.bytes)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = find_text(text.bytes, part, at)) != text.bytes.npos; ++n) {
    run.meter().step();
    at += part.size();
  }
  return Value::integer(n);
}

Value join(Run& run, const Text& text, const CallArgs& args) {
  MINFER_REQUIRE(Input, !text.markup, "join() of a text marked as safe is not supported");
  const Bound bound("join", args, {""}, 1);
  MINFER_REQUIRE(Input, !bound[0].is(Kind::Undefined), "can only join an iterable");
  TextBuilder out(run.meter());
  const std::unique_ptr<Iterator> items = run.iterate(bound[0]);
  Value item;
  for (bool first = true; items->next(item); first = false) {
    if (!first) out.add(text);
    out.add(text_of(item, "an item of join()"));
  }
  return run.text(out.take());
}

void require_ascii(const Text& text, const std::string& name) {
  const bool ascii = std::ranges::all_of(text.bytes, [](char c) { return (c & '\x80') == 0; });
  MINFER_REQUIRE(Input, ascii, name, "() of text that is not ASCII is not supported");
}

Value is_of(Run& run, const Text& text, const std::string& name, const CallArgs& args) {
  Bound(name.c_str(), args, {}, 0);
  run.meter().scan(text.bytes.size());
  const std::string& bytes = text.bytes;
  if (name == "isspace")
    return Value::boolean(!bytes.empty() && skip_space(bytes, 0) == bytes.size());
  require_ascii(text, name);
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  if (name == "isdigit") {
    return Value::boolean(!bytes.empty() &&
                          std::ranges::all_of(bytes, [](char c) { return c >= '0' && c <= '9'; }));
  }
  const bool any_lower = std::ranges::any_of(bytes, lower);
  const bool any_upper = std::ranges::any_of(bytes, upper);
  return Value::boolean(name == "islower" ? any_lower && !any_upper : any_upper && !any_lower);
}

// Every letter behind what is none is upper case.
Value title(Run& run, const Text& text, const CallArgs& args) {
  Bound("title", args, {}, 0);
  require_ascii(text, "title");
  TextBuilder out(run.meter());
  bool inside = false;
  for (size_t at = 0; at < text.bytes.size(); ++at) {
    const char c = text.bytes[at];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    out.add(in_case(static_cast<char32_t>(c), inside ? Case::Lower : Case::Upper), text.own_at(at));
    inside = letter;
  }
  Text result = out.take();
  result.markup = text.markup;
  return run.text(std::move(result));
}

Value without_affix(Run& run, const Value& self, const std::string& name, const CallArgs& args) {
  const Text& text = self.text();
  const Bound bound(name.c_str(), args, {""}, 1);
  const std::string& affix = text_of(bound[0], "the affix").bytes;
  run.meter().scan(affix.size());
  const size_t size = text.bytes.size();
  if (name == "removeprefix")
    return text.bytes.starts_with(affix) ? sliced(run, text, affix.size(), size) : self;
  return text.bytes.ends_with(affix) ? sliced(run, text, 0, size - affix.size()) : self;
}

Value partition(Run& run, const Text& text, const std::string& name, const CallArgs& args) {
  const Bound bound(name.c_str(), args, {""}, 1);
  const std::string& part = text_of(bound[0], "the separator").bytes;
  MINFER_REQUIRE(Input, !part.empty(), "empty separator");
  run.meter().scan(text.bytes.size());
  const bool last = name == "rpartition";
  const size_t size = text.bytes.size();
  const size_t found = last ? find_last(run.meter(), text.bytes, part, size)
                            : find_text(text.bytes, part, 0);
  const Value whole = run.text(text), none = run.text("");
  if (found == text.bytes.npos)
    return make_tuple(run.meter(), last ? Values{none, none, whole} : Values{whole, none, none});
  return make_tuple(run.meter(), {sliced(run, text, 0, found), bound[0],
                                  sliced(run, text, found + part.size(), size)});
}

Value replace(Run& run, const Text& text, const CallArgs& args) {
  const Bound bound("replace", args, {"", " ", "  "}, 2);
  const Text& to = text_of(bound[1], "what replaces");
  MINFER_REQUIRE(Input, !text.markup && !to.markup,
                 "replace() with a text marked as safe is not supported");
  const int64_t count = bound.has(2) ? whole(bound[2], "the count") : -1;
  return replaced(run, text, text_of(bound[0], "what is replaced"), to, count);
}

}  // namespace

bool is_string_method(const std::string& name) {
  return std::ranges::any_of(kMethods, [&](const char* known) { return name == known; });
}

Value call_string_method(Run& run, const Value& self, const std::string& name,
                         const CallArgs& args) {
  const Text& text = self.text();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound bound(name.c_str(), args, {""}, 0);
    return stripped(run, self, bound[0], name == "strip" ? 'b' : name[0]);
  }
  if (name == "split" || name == "rsplit") return split(run, text, name, args);
  if (name == "splitlines") {
    const Bound bound("splitlines", args, {"keepends"}, 0);
    return make_list(run.meter(), split_lines(run, text, bound.flag(0)));
  }
  if (name == "replace") return replace(run, text, args);
  if (name == "startswith" || name == "endswith") return begins_or_ends(run, text, name, args);
  if (name == "upper" || name == "lower") {
    Bound(name.c_str(), args, {}, 0);
    return in_case(run, text, name == "upper" ? Case::Upper : Case::Lower);
  }
  if (name == "capitalize") {
    Bound("capitalize", args, {}, 0);
    return capitalized(run, text);
  }
  if (name == "title") return title(run, text, args);
  if (name == "count") return count(run, text, args);
  if (name == "join") return join(run, text, args);
  if (name == "removeprefix" || name == "removesuffix")
    return without_affix(run, self, name, args);
  if (name == "partition" || name == "rpartition") return partition(run, text, name, args);
  if (name.starts_with("is")) return is_of(run, text, name, args);
  return find(run, text, name, args);
}

}  // namespace minfer::jinja
