#include <algorithm>
#include <unordered_map>

#include "models/chat/run.h"

// Filters that are generators in Jinja: their items come once, and what they do happens when an item
// is asked for.
namespace minfer::jinja {
namespace {

template <typename Source>
Value generator(Run& run, int nesting, std::unique_ptr<Source> items) {
  run.meter().step();
  return {Kind::Generator,
          std::make_shared<Generator>(run.meter(), std::move(items), nesting + 1)};
}

int nesting_of(const Value& value, const CallArgs& args) {
  int deepest = std::max(value.nesting(), minfer::jinja::nesting_of(args.positional));
  for (const auto& [name, argument] : args.keywords)
    deepest = std::max(deepest, argument.nesting());
  return deepest;
}

// The items of a value, which is first looked at when one is asked for.
class Lazy : public Iterator {
 public:
  Lazy(Run& run, const Value& value, const CallArgs& args)
      : run_(run), value_(value), args_(args) {}

 protected:
  bool next_source(Value& item) {
    run_.meter().step();
    if (!items_) items_ = run_.iterate(value_);
    return items_->next(item);
  }
  Run& run_;
  const Value value_;
  CallArgs args_;

 private:
  std::unique_ptr<Iterator> items_;
};

class Map : public Lazy {
 public:
  using Lazy::Lazy;
  bool next(Value& item) override {
    if (!truthy(value_)) return false;
    if (!ready_) prepare();
    if (!next_source(item)) return false;
    item = getter_ ? getter_->get(run_, item) : run_.apply_filter(filter_, item, args_);
    return true;
  }

 private:
  void prepare() {
    ready_ = true;
    const auto attribute = std::ranges::find(args_.keywords, "attribute",
                                             &std::pair<std::string, Value>::first);
    if (args_.positional.empty() && attribute != args_.keywords.end()) {
      const Bound bound("map", args_, {"attribute", "default"}, 1);
      getter_.emplace(run_, bound[0], bound[1]);
      return;
    }
    MINFER_REQUIRE(Input, !args_.positional.empty(), "map requires a filter argument");
    filter_ = text_of(args_.positional[0], "the name of a filter").bytes;
    args_.positional.erase(args_.positional.begin());
  }

  bool ready_ = false;
  std::optional<AttributeGetter> getter_;
  std::string filter_;
};

class Select : public Lazy {
 public:
  Select(Run& run, const Value& value, const CallArgs& args, bool by_attribute, bool keep)
      : Lazy(run, value, args), by_attribute_(by_attribute), keep_(keep) {}
  bool next(Value& item) override {
    if (!truthy(value_)) return false;
    if (!ready_) prepare();
    while (next_source(item)) {
      const Value tested = getter_ ? getter_->get(run_, item) : item;
      const bool holds = test_.empty() ? truthy(tested) : run_.apply_test(test_, tested, args_);
      if (holds == keep_) return true;
    }
    return false;
  }

 private:
  void prepare() {
    ready_ = true;
    Values& positional = args_.positional;
    if (by_attribute_) {
      MINFER_REQUIRE(Input, !positional.empty(), "Missing parameter for attribute name");
      getter_.emplace(run_, positional[0]);
      positional.erase(positional.begin());
    }
    if (positional.empty()) return;
    test_ = text_of(positional[0], "the name of a test").bytes;
    positional.erase(positional.begin());
  }

  const bool by_attribute_, keep_;
  bool ready_ = false;
  std::optional<AttributeGetter> getter_;
  std::string test_;
};

class Items : public Lazy {
 public:
  using Lazy::Lazy;
  bool next(Value& item) override {
    if (value_.is(Kind::Undefined)) return false;
    MINFER_REQUIRE(Input, value_.is(Kind::Dict), "Can only get item pairs from a mapping.");
    const auto& items = value_.as<Dict>().items;
    run_.meter().step();
    if (at_ >= items.size()) return false;
    item = make_tuple(run_.meter(), {items[at_].first, items[at_].second});
    ++at_;
    return true;
  }

 private:
  size_t at_ = 0;
};

class Unique : public Lazy {
 public:
  using Lazy::Lazy;
  bool next(Value& item) override {
    if (!getter_) {
      const Bound bound("unique", args_, {"case_sensitive", "attribute"}, 0);
      getter_.emplace(run_, bound[1]);
      case_sensitive_ = bound.flag(0);
    }
    while (next_source(item)) {
      const Value key = ignoring_case(run_, getter_->get(run_, item), case_sensitive_);
      if (is_new(key)) return true;
    }
    return false;
  }

 private:
  bool is_new(const Value& key) {
    const size_t hash = hash_of(run_.meter(), key);
    const auto [begin, end] = seen_.equal_range(hash);
    for (auto at = begin; at != end; ++at)
      if (equal(run_.meter(), at->second, key)) return false;
    run_.meter().require_room(seen_.size() * (sizeof(Value) + 48));
    seen_.emplace(hash, key);
    return true;
  }

  std::optional<AttributeGetter> getter_;
  bool case_sensitive_ = false;
  std::unordered_multimap<size_t, Value> seen_;
};

class Batch : public Lazy {
 public:
  using Lazy::Lazy;
  bool next(Value& item) override {
    const Bound bound("batch", args_, {"linecount", "fill_with"}, 1);
    const int64_t count = whole(bound[0], "linecount");
    MINFER_REQUIRE(Input, count > 0, "batch() of less than one is not supported");
    Values line;
    Value one;
    const auto add = [&](const Value& value) {
      run_.meter().step();
      run_.meter().require_room((line.size() + 1) * sizeof(Value));
      line.push_back(value);
    };
    while (static_cast<int64_t>(line.size()) < count && next_source(one)) add(one);
    if (line.empty()) return false;
    const bool fill = bound.has(1) && !bound[1].is(Kind::None);
    while (fill && static_cast<int64_t>(line.size()) < count) add(bound[1]);
    item = make_list(run_.meter(), std::move(line));
    return true;
  }
};

class Slices : public Lazy {
 public:
  using Lazy::Lazy;
  bool next(Value& item) override {
    const Bound bound("slice", args_, {"slices", "fill_with"}, 1);
    const int64_t n = whole(bound[0], "slices");
    MINFER_REQUIRE(Input, n > 0, "slice() into less than one is not supported");
    if (at_ == 0) all_ = run_.items_of(value_);
    if (at_ >= n) return false;
    const auto length = static_cast<int64_t>(all_.size());
    const int64_t each = length / n, extra = length % n;
    const int64_t begin = at_ * each + std::min(at_, extra);
    Values part(all_.begin() + begin, all_.begin() + begin + each + (at_ < extra ? 1 : 0));
    const bool fill = bound.has(1) && !bound[1].is(Kind::None);
    if (fill && at_ >= extra) part.push_back(bound[1]);
    run_.meter().step(static_cast<int64_t>(part.size() + 1));
    item = make_list(run_.meter(), std::move(part));
    ++at_;
    return true;
  }

 private:
  Values all_;
  int64_t at_ = 0;
};

class Backwards : public Iterator {
 public:
  Backwards(Run& run, Values items) : run_(run), items_(std::move(items)) {}
  bool next(Value& item) override {
    run_.meter().step();
    if (items_.empty()) return false;
    item = std::move(items_.back());
    items_.pop_back();
    return true;
  }

 private:
  Run& run_;
  Values items_;
};

template <typename Source>
Value lazy(Run& run, const Value& value, const CallArgs& args) {
  return generator(run, nesting_of(value, args), std::make_unique<Source>(run, value, args));
}

template <bool by_attribute, bool keep>
Value choose(Run& run, const Value& value, const CallArgs& args) {
  return generator(run, nesting_of(value, args),
                   std::make_unique<Select>(run, value, args, by_attribute, keep));
}

Value items(Run& run, const Value& value, const CallArgs& args) {
  Bound("items", args, {}, 0);
  return lazy<Items>(run, value, args);
}

Value unique(Run& run, const Value& value, const CallArgs& args) {
  Bound("unique", args, {"case_sensitive", "attribute"}, 0);
  return lazy<Unique>(run, value, args);
}

Value batch(Run& run, const Value& value, const CallArgs& args) {
  Bound("batch", args, {"linecount", "fill_with"}, 1);
  return lazy<Batch>(run, value, args);
}

Value slice(Run& run, const Value& value, const CallArgs& args) {
  Bound("slice", args, {"slices", "fill_with"}, 1);
  return lazy<Slices>(run, value, args);
}

Value reverse(Run& run, const Value& value, const CallArgs& args) {
  Bound("reverse", args, {}, 0);
  Values all = run.items_of(value);
  if (value.is(Kind::String)) {
    TextBuilder out(run.meter());
    for (size_t i = all.size(); i > 0; --i) out.add(all[i - 1].text());
    return run.text(out.take());
  }
  if (value.is(Kind::Generator)) {  // no sequence: Jinja makes a list
    std::ranges::reverse(all);
    return make_list(run.meter(), std::move(all));
  }
  run.meter().require_room(all.size() * sizeof(Value));
  return generator(run, value.nesting(), std::make_unique<Backwards>(run, std::move(all)));
}

}  // namespace

std::vector<NamedFilter> lazy_filters() {
  return {{"map", lazy<Map>},
          {"select", choose<false, true>},
          {"reject", choose<false, false>},
          {"selectattr", choose<true, true>},
          {"rejectattr", choose<true, false>},
          {"items", items},
          {"unique", unique},
          {"batch", batch},
          {"slice", slice},
          {"reverse", reverse}};
}

}  // namespace minfer::jinja
