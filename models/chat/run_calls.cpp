#include <algorithm>
#include <map>

#include "models/chat/run.h"

namespace minfer::jinja {

Bound::Bound(const char* what, const CallArgs& args, std::initializer_list<const char*> names,
             size_t n_required)
    : values_(names.size()) {
  MINFER_REQUIRE(Input, args.positional.size() <= names.size(), what, "() takes at most ",
                 names.size(), " arguments, ", args.positional.size(), " are given");
  std::ranges::copy(args.positional, values_.begin());
  for (const auto& [name, value] : args.keywords) {
    const auto found = std::ranges::find_if(names, [&](const char* n) { return name == n; });
    MINFER_REQUIRE(Input, found != names.end(), what, "() got an unexpected keyword argument \"",
                   shortened(name), "\"");
    Value& place = values_[static_cast<size_t>(found - names.begin())];
    MINFER_REQUIRE(Input, place.is(Kind::Missing), what, "() got the argument \"", shortened(name),
                   "\" twice");
    place = value;
  }
  for (size_t i = 0; i < n_required; ++i)
    MINFER_REQUIRE(Input, has(i), what, "() misses the argument \"", names.begin()[i], "\"");
}

Value Run::call(const Value& callee, const CallArgs& args) {
  meter_.step();
  switch (callee.kind()) {
    case Kind::Undefined:
    case Kind::Missing:
      throw Error(ErrorKind::Input, callee.is(Kind::Missing) ? "undefined" : callee.why());
    case Kind::Macro:
      return call_macro(callee.as<Macro>(), args);
    case Kind::Function:
      return call_function(*this, callee.as<Function>().name, args);
    case Kind::Method:
      return call_method(callee.as<Method>(), args);
    case Kind::Loop:
      throw Error(ErrorKind::Input, "recursive loops are not supported");
    default:
      throw Error(ErrorKind::Input, cat("'", type_name(callee), "' object is not callable"));
  }
}

Value Run::new_macro(const MacroBody& body) {
  return {Kind::Macro, std::make_shared<Macro>(meter_, body, *here_)};
}

Value Run::new_namespace(const CallArgs& args) {
  const Value dict = call_function(*this, "dict", args);
  meter_.take(sizeof(Namespace));
  auto space = std::make_unique<Namespace>();
  for (const auto& [name, value] : dict.as<Dict>().items) {
    meter_.take(sizeof(Dict::Item));
    space->items.emplace_back(text_of(name, "names of a namespace").bytes, value);
  }
  spaces_.push_back(std::move(space));
  return Value::of(spaces_.back().get());
}

Value Run::call_macro(const Macro& macro, const CallArgs& args) {
  const Deeper deeper(calls_, kMaxNesting);
  const FunctionBody& function = macro.body.function;
  auto own = std::make_unique<Activation>();
  Activation* const activation = own.get();
  own->outer = &macro.defined_in;
  const auto n_slots = static_cast<size_t>(function.n_slots);
  meter_.step(function.n_slots);
  own->slots.resize(n_slots);
  if (function.keeps_slots) {
    meter_.take(sizeof(Activation) + n_slots * sizeof(Value));
    kept_.push_back(std::move(own));
  }
  const struct Back {
    Activation*& here;
    Activation* before;
    int &line, line_before;
    ~Back() { here = before; }
  } back{here_, here_, line_, line_};
  here_ = activation;
  bind_macro(macro, args, *activation);
  Flow flow = Flow::Next;
  Value result = text(captured(*macro.body.body, flow));
  line_ = back.line_before;
  return result;
}

void Run::bind_macro(const Macro& macro, const CallArgs& args, Activation& activation) {
  const MacroBody& body = macro.body;
  const size_t n_parameters = body.parameters.size();
  std::vector<std::pair<std::string, Value>> keywords = args.keywords;
  const auto take_keyword = [&](const std::string& name) {
    for (size_t i = 0; i < keywords.size(); ++i) {
      meter_.step();
      if (keywords[i].first != name) continue;
      Value value = std::move(keywords[i].second);
      keywords.erase(keywords.begin() + static_cast<ptrdiff_t>(i));
      return value;
    }
    return Value();
  };
  const auto set = [&](int index, Value value) {
    activation.slots[static_cast<size_t>(index)] = std::move(value);
  };
  bool found_caller = false;
  for (size_t i = 0; i < n_parameters; ++i) {
    const Parameter& parameter = body.parameters[i];
    const bool given = i < args.positional.size();
    if (parameter.name == "caller") found_caller = true;
    set(parameter.index, given ? args.positional[i] : take_keyword(parameter.name));
  }
  if (body.caller >= 0 && !found_caller) {
    Value caller = take_keyword("caller");
    if (caller.is(Kind::Missing) || caller.is(Kind::None)) caller = undefined("No caller defined");
    set(body.caller, std::move(caller));
  }
  if (body.kwargs >= 0) {
    DictBuilder rest(meter_);
    for (const auto& [name, value] : keywords) rest.set(text(name), value);
    set(body.kwargs, rest.take());
  } else {
    MINFER_REQUIRE(Input, keywords.empty(), "macro ", macro.shown(), " takes no keyword argument '",
                   shortened(keywords[0].first), "'");
  }
  const bool too_many = args.positional.size() > n_parameters;
  if (body.varargs >= 0) {
    const auto first = static_cast<ptrdiff_t>(std::min(n_parameters, args.positional.size()));
    set(body.varargs,
        make_tuple(meter_, Values(args.positional.begin() + first, args.positional.end())));
  } else {
    MINFER_REQUIRE(Input, !too_many, "macro ", macro.shown(), " takes not more than ", n_parameters,
                   " argument(s)");
  }
  enter(body.scope);
  for (const Parameter& parameter : body.parameters) {
    if (!activation.slots[static_cast<size_t>(parameter.index)].is(Kind::Missing)) continue;
    Value value = parameter.otherwise
                      ? evaluate(*parameter.otherwise)
                      : undefined(cat("parameter '", parameter.name, "' was not provided"));
    set(parameter.index, std::move(value));
  }
}

Value Run::call_loop(const Value& self, const std::string& name, const CallArgs& args) {
  MINFER_REQUIRE(Input, args.keywords.empty(), "loop.", name, "() takes no keyword arguments");
  Loop& loop = self.as<Loop>();
  if (name == "cycle") {
    MINFER_REQUIRE(Input, !args.positional.empty(), "no items for cycling given");
    const auto n = static_cast<int64_t>(args.positional.size());
    return args.positional[static_cast<size_t>((loop.index0 % n + n) % n)];
  }
  MINFER_REQUIRE(Input, !loop.closed(), "loop.changed behind its loop is not supported");
  const Value now = make_tuple(meter_, args.positional);
  const bool changed =
      loop.last_changed.is(Kind::Missing) || !equal(meter_, loop.last_changed, now);
  if (changed) loop.last_changed = now;
  return Value::boolean(changed);
}

namespace {

Value call_list_method(Run& run, const Value& self, const std::string& name, const CallArgs& args) {
  const Values& items = self.as<List>().items;
  if (name == "copy") {
    Bound("copy", args, {}, 0);
    return self;
  }
  const Bound bound(name.c_str(), args, {""}, 1);
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!equal(run.meter(), items[i], bound[0])) continue;
    if (name == "index") return Value::integer(static_cast<int64_t>(i));
    ++count;
  }
  MINFER_REQUIRE(Input, name == "count", "list.index(x): x not in list");
  return Value::integer(count);
}

Value call_dict_method(Run& run, const Value& self, const std::string& name, const CallArgs& args) {
  if (name == "get") {
    const Bound bound("get", args, {"", " "}, 1);
    if (const Value* found = self.as<Dict>().find(run.meter(), bound[0])) return *found;
    return bound.has(1) ? bound[1] : Value::none();
  }
  Bound(name.c_str(), args, {}, 0);
  if (name == "copy") return self;
  const ViewOf which = name == "keys"     ? ViewOf::Keys
                       : name == "values" ? ViewOf::Values
                                          : ViewOf::Items;
  return {Kind::View, std::make_shared<View>(run.meter(), self, which)};
}

}  // namespace

Value Run::call_method(const Method& method, const CallArgs& args) {
  switch (method.self.kind()) {
    case Kind::String:
      return call_string_method(*this, method.self, method.name, args);
    case Kind::Dict:
      return call_dict_method(*this, method.self, method.name, args);
    case Kind::Loop:
      return call_loop(method.self, method.name, args);
    default:
      return call_list_method(*this, method.self, method.name, args);
  }
}

}  // namespace minfer::jinja
