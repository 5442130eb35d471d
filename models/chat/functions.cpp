#include <algorithm>
#include <array>

#include "models/chat/run.h"

// The global functions of a template.
namespace minfer::jinja {
namespace {

// lipsum, cycler and joiner are Jinja's, and are refused only where they are called.
constexpr std::array<const char*, 8> kFunctions = {
    "range", "dict", "namespace", "raise_exception", "strftime_now", "lipsum", "cycler", "joiner"};

Value range(Run& run, const CallArgs& args) {
  const Bound bound("range", args, {"", " ", "  "}, 1);
  const auto number = [&](size_t i) { return whole(bound[i], "range()"); };
  const bool one = !bound.has(1);
  const int64_t begin = one ? 0 : number(0), end = one ? number(0) : number(1);
  const int64_t step = bound.has(2) ? number(2) : 1;
  return {Kind::Range, std::make_shared<Range>(run.meter(), begin, end, step)};
}

Value dict(Run& run, const CallArgs& args) {
  MINFER_REQUIRE(Input, args.positional.size() <= 1, "dict() takes at most 1 argument");
  DictBuilder out(run.meter());
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Kind::Dict)) {
      for (const auto& [key, value] : from.as<Dict>().items) out.set(key, value);
    } else {
      const std::unique_ptr<Iterator> pairs = run.iterate(from);
      Value pair;
      while (pairs->next(pair)) {
        const Values two = run.items_of(pair);
        MINFER_REQUIRE(Input, two.size() == 2, "dict() takes pairs, one item has ", two.size());
        out.set(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keywords) out.set(run.text(name), value);
  return out.take();
}

}  // namespace

bool is_global_function(const std::string& name) {
  return std::ranges::any_of(kFunctions, [&](const char* known) { return name == known; });
}

Value call_function(Run& run, const std::string& name, const CallArgs& args) {
  if (name == "range") return range(run, args);
  if (name == "dict") return dict(run, args);
  if (name == "namespace") return run.new_namespace(args);
  if (name == "raise_exception") {
    const Bound bound("raise_exception", args, {"message"}, 1);
    const Text words = to_text(run.meter(), bound[0]);
    throw Error(ErrorKind::Usage, cat("the chat template refuses: ", shortened(words.bytes, 1000)));
  }
  if (name == "strftime_now") {
    const Bound bound("strftime_now", args, {"format"}, 1);
    return run.text(local_time(text_of(bound[0], "the format of a time").bytes));
  }
  throw Error(ErrorKind::Input, cat("the function \"", name, "\" is not supported"));
}

}  // namespace minfer::jinja
