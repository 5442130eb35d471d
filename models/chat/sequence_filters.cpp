#include <algorithm>

#include "models/chat/run.h"

namespace minfer::jinja {
namespace {

Value length(Run&, const Value& value, const CallArgs& args) {
  Bound("length", args, {}, 0);
  const std::optional<int64_t> n = length_of(value);
  MINFER_REQUIRE(Input, n, "object of type '", type_name(value), "' has no len()");
  return Value::integer(*n);
}

Value first(Run& run, const Value& value, const CallArgs& args) {
  Bound("first", args, {}, 0);
  const std::unique_ptr<Iterator> items = run.iterate(value);
  Value item;
  return items->next(item) ? item : run.undefined("No first item, sequence was empty.");
}

// The items of what Python's reversed() takes, from the end.
Values reversed(Run& run, const Value& value) {
  const bool takes = value.is(Kind::Undefined) || value.is(Kind::List) || value.is(Kind::Tuple) ||
                     value.is(Kind::Dict) || value.is(Kind::Range) || value.is(Kind::String) ||
                     value.is(Kind::View);
  MINFER_REQUIRE(Input, takes, "'", type_name(value), "' object is not reversible");
  Values items = run.items_of(value);
  std::ranges::reverse(items);
  return items;
}

Value last(Run& run, const Value& value, const CallArgs& args) {
  Bound("last", args, {}, 0);
  Values items = reversed(run, value);
  return items.empty() ? run.undefined("No last item, sequence was empty.") : items[0];
}

Value list(Run& run, const Value& value, const CallArgs& args) {
  Bound("list", args, {}, 0);
  return make_list(run.meter(), run.items_of(value));
}

Value join(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("join", args, {"d", "attribute"}, 0);
  Text between;
  if (bound.has(0)) between = to_text(run.meter(), bound[0]);
  const AttributeGetter getter(run, bound[1]);
  TextBuilder out(run.meter());
  const std::unique_ptr<Iterator> items = run.iterate(value);
  Value item;
  for (bool is_first = true; items->next(item); is_first = false) {
    if (!is_first) out.add(between);
    add_text(out, run.meter(), getter.get(run, item));
  }
  return run.text(out.take());
}

Value default_(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("default", args, {"default_value", "boolean"}, 0);
  const bool replaced = value.is(Kind::Undefined) || (bound.flag(1) && !truthy(value));
  if (!replaced) return value;
  return bound.has(0) ? bound[0] : run.text("");
}

// Sorts items by keys, stably; `reverse` keeps the order of equal ones too.
Values sorted(Run& run, const Values& items, const Values& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return reverse ? less(run.meter(), keys[b], keys[a]) : less(run.meter(), keys[a], keys[b]);
  });
  Values out;
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<AttributeGetter> getters;
  if (bound.has(2) && bound[2].is(Kind::String)) {
    const std::string& names = bound[2].text().bytes;
    for (size_t begin = 0; begin <= names.size();) {
      const size_t end = std::min(names.find(',', begin), names.size());
      getters.emplace_back(run, run.text(names.substr(begin, end - begin)));
      begin = end + 1;
    }
  } else {
    getters.emplace_back(run, bound[2]);
  }
  const Values items = run.items_of(value);
  Values keys;
  for (const Value& item : items) {
    Values parts;
    for (const AttributeGetter& getter : getters)
      parts.push_back(ignoring_case(run, getter.get(run, item), bound.flag(1)));
    keys.push_back(make_list(run.meter(), std::move(parts)));
  }
  return make_list(run.meter(), sorted(run, items, keys, bound.flag(0)));
}

Value dictsort(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = bound.has(1) ? text_of(bound[1], "by").bytes : "key";
  MINFER_REQUIRE(Input, by == "key" || by == "value",
                 "You can only sort by either \"key\" or \"value\"");
  MINFER_REQUIRE(Input, value.is(Kind::Dict), "'", type_name(value), "' has no attribute 'items'");
  Values items, keys;
  for (const auto& [key, item] : value.as<Dict>().items) {
    items.push_back(make_tuple(run.meter(), {key, item}));
    keys.push_back(ignoring_case(run, by == "key" ? key : item, bound.flag(0)));
  }
  return make_list(run.meter(), sorted(run, items, keys, bound.flag(2)));
}

Value extreme(Run& run, const Value& value, const CallArgs& args, bool largest) {
  const Bound bound(largest ? "max" : "min", args, {"case_sensitive", "attribute"}, 0);
  const AttributeGetter getter(run, bound[1]);
  const std::unique_ptr<Iterator> items = run.iterate(value);
  Value best, best_key, item;
  while (items->next(item)) {
    Value key = ignoring_case(run, getter.get(run, item), bound.flag(0));
    const bool better = best.is(Kind::Missing) || (largest ? less(run.meter(), best_key, key)
                                                           : less(run.meter(), key, best_key));
    if (!better) continue;
    best = item;
    best_key = std::move(key);
  }
  return best.is(Kind::Missing) ? run.undefined("No aggregated item, sequence was empty.") : best;
}

Value min(Run& run, const Value& value, const CallArgs& args) {
  return extreme(run, value, args, false);
}

Value max(Run& run, const Value& value, const CallArgs& args) {
  return extreme(run, value, args, true);
}

Value sum(Run& run, const Value& value, const CallArgs& args) {
  const Bound bound("sum", args, {"attribute", "start"}, 0);
  const AttributeGetter getter(run, bound[0]);
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  MINFER_REQUIRE(Input, !total.is(Kind::String), "sum() can't sum strings");
  const std::unique_ptr<Iterator> items = run.iterate(value);
  Value item;
  while (items->next(item)) total = run.binary("+", total, getter.get(run, item));
  return total;
}

}  // namespace

std::vector<NamedFilter> sequence_filters() {
  return {{"length", length}, {"count", length},     {"first", first},       {"last", last},
          {"list", list},     {"join", join},        {"default", default_},  {"d", default_},
          {"sort", sort},     {"dictsort", dictsort}, {"min", min},          {"max", max},
          {"sum", sum}};
}

}  // namespace minfer::jinja
