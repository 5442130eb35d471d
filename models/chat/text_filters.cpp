#include <algorithm>

#include "models/chat/run.h"

namespace minfer::jinja {
namespace {

// What most filters of texts do first: Jinja's soft_str.
Value soft(Run& run, const Value& value) {
  return value.is(Kind::String) ? value : run.text(to_text(run.meter(), value));
}

Value upper(Run& run, const Value& value, const CallArgs& args) {
  Bound("upper", args, {}, 0);
  return in_case(run, soft(run, value).text(), Case::Upper);
}

Value lower(Run& run, const Value& value, const CallArgs& args) {
  Bound("lower", args, {}, 0);
  return in_case(run, soft(run, value).text(), Case::Lower);
}

Value capitalize(Run& run, const Value& value, const CallArgs& args) {
  Bound("capitalize", args, {}, 0);
  return capitalized(run, soft(run, value).text());
}

// Words begin behind white space and - ( { [ <.
Value title(Run& run, const Value& value, const CallArgs& args) {
  Bound("title", args, {}, 0);
  const Value whole = soft(run, value);
  const Text& text = whole.text();
  run.meter().step(static_cast<int64_t>(text.bytes.size() / 8));
  TextBuilder out(run.meter());
  bool inside = false;
  for (size_t at = 0, n = 0; at < text.bytes.size(); at += n) {
    const char32_t code = code_point_at(text.bytes, at, n);
    out.add(in_case(code, inside ? Case::Lower : Case::Upper), text.own_at(at));
    inside = !is_space(code) && !(code < 0x80 && std::string_view("-({[<").find(
                                                     static_cast<char>(code)) != std::string::npos);
  }
  return run.text(out.take());
}

Value trim(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("trim", args, {"chars"}, 0);
  return stripped(run, soft(run, value), bound[0], 'b');
}

Value string(Run& run, const Value& value, const CallArgs& args) {
  Bound("string", args, {}, 0);
  return soft(run, value);
}

Value replace(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const bool all = !bound.has(2) || bound[2].is(Kind::None);
  Text text = to_text(run.meter(), value);
  text.markup = false;
  return replaced(run, text, to_text(run.meter(), bound[0]), to_text(run.meter(), bound[1]),
                  all ? -1 : whole(bound[2], "the count"));
}

Value safe(Run& run, const Value& value, const CallArgs& args) {
  Bound("safe", args, {}, 0);
  Text text = to_text(run.meter(), value);
  text.markup = true;
  return run.text(std::move(text));
}

Value escape(Run& run, const Value& value, const CallArgs& args) {
  Bound("escape", args, {}, 0);
  Text text = to_text(run.meter(), value);
  if (value.is(Kind::String) && text.markup) return value;
  run.meter().step(static_cast<int64_t>(text.bytes.size() / 8));
  TextBuilder out(run.meter());
  size_t done = 0;
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  for (size_t at = text.bytes.find_first_of(kSpecial); at != std::string::npos;
       at = text.bytes.find_first_of(kSpecial, done)) {
    out.add(text, done, at).add(kEscapes[kSpecial.find(text.bytes[at])], text.own_at(at));
    done = at + 1;
  }
  out.add(text, done, text.bytes.size());
  Text escaped = out.take();
  escaped.markup = true;
  return run.text(std::move(escaped));
}

Value indent(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("indent", args, {"width", "first", "blank"}, 0);
  const Text& text = text_of(value, "what is indented");
  MINFER_REQUIRE(Input, !text.markup, "indenting a text marked as safe is not supported");
  Text space;
  if (bound.has(0) && bound[0].is(Kind::String)) {
    space = bound[0].text();
  } else {
    const int64_t width = bound.has(0) ? whole(bound[0], "the width") : 4;
    run.meter().require_room(static_cast<size_t>(std::max<int64_t>(width, 0)));
    space = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), true);
  }
  TextBuilder ended(run.meter());
  const Text with_end = ended.add(text).add("\n").take();
  const Values lines = split_lines(run, with_end, false);
  TextBuilder out(run.meter());
  if (bound.flag(1)) out.add(space);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Text& line = lines[i].text();
    if (i > 0) out.add("\n");
    if (i > 0 && (bound.flag(2) || !line.bytes.empty())) out.add(space);
    out.add(line);
  }
  return run.text(out.take());
}

Value truncate(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("truncate", args, {"length", "killwords", "end", "leeway"}, 0);
  const Text& text = text_of(value, "what is truncated");
  const int64_t length = bound.has(0) ? whole(bound[0], "the length") : 255;
  const int64_t leeway =
      bound.has(3) && !bound[3].is(Kind::None) ? whole(bound[3], "the leeway") : 5;
  const Value end = bound.has(2) ? bound[2] : run.text("...");
  text_of(end, "the end");
  const auto end_length = static_cast<int64_t>(end.as<String>().length);
  MINFER_REQUIRE(Input, length >= end_length && leeway >= 0, "truncate() to less than its end");
  const String& string = value.as<String>();
  const auto size = static_cast<int64_t>(string.length);
  if (size <= length || size - length <= leeway) return value;
  size_t keep = string.position(run.meter(), static_cast<size_t>(length - end_length));
  if (!bound.flag(1)) {
    const size_t blank = std::string_view(text.bytes).substr(0, keep).rfind(' ');
    if (blank != text.bytes.npos) keep = blank;
  }
  TextBuilder out(run.meter());
  out.add(text, 0, keep).add(end.text());
  return run.text(out.take());
}

Value center(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("center", args, {"width"}, 0);
  const Value whole_text = soft(run, value);
  const int64_t width = bound.has(0) ? whole(bound[0], "the width") : 80;
  const auto length = static_cast<int64_t>(whole_text.as<String>().length);
  if (width <= length) return whole_text;
  const int64_t room = width - length;
  run.meter().require_room(static_cast<size_t>(room));
  // Python's str.center puts the odd blank by this rule.
  const int64_t left = room / 2 + (room & width & 1);
  TextBuilder out(run.meter());
  out.add(std::string(static_cast<size_t>(left), ' '))
      .add(whole_text.text())
      .add(std::string(static_cast<size_t>(room - left), ' '));
  return run.text(out.take());
}

Value format(Run& run, const Value& value, const CallArgs& args) {
  MINFER_REQUIRE(Input, args.keywords.empty(), "format with names is not supported");
  const Value whole_text = soft(run, value);
  return formatted(run, whole_text.text(), make_tuple(run.meter(), args.positional));
}

std::string indent_of(const Value& value) {
  if (value.is(Kind::String)) return value.text().bytes;
  const int64_t width = whole(value, "the indent");
  MINFER_REQUIRE(Input, width <= 1000, "an indent of more than 1000 is not supported");
  return std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
}

Value tojson(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  const auto given = [&](size_t i) { return bound.has(i) && !bound[i].is(Kind::None); };
  JsonStyle style;
  style.ascii = bound.flag(0);
  style.sort_keys = bound.flag(3);
  if (given(1)) {
    style.indent = indent_of(bound[1]);
    style.item_separator = ",";
  }
  if (given(2)) {
    const Values two = run.items_of(bound[2]);
    MINFER_REQUIRE(Input, two.size() == 2, "tojson takes two separators");
    style.item_separator = text_of(two[0], "a separator").bytes;
    style.key_separator = text_of(two[1], "a separator").bytes;
  }
  TextBuilder out(run.meter());
  add_json(out, run.meter(), value, style);
  return run.text(out.take());
}

}  // namespace

std::vector<NamedFilter> text_filters() {
  return {{"upper", upper},       {"lower", lower},       {"capitalize", capitalize},
          {"title", title},       {"trim", trim},         {"string", string},
          {"replace", replace},   {"safe", safe},         {"escape", escape},
          {"e", escape},          {"indent", indent},     {"truncate", truncate},
          {"center", center},     {"format", format},     {"tojson", tojson}};
}

}  // namespace minfer::jinja
