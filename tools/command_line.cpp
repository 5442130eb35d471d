#include "tools/command_line.h"

#include <algorithm>
#include <set>

#include "kernels/base/error.h"

namespace minfer {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
  }
  return parts;
}

template <typename T>
std::string list_text(const std::vector<T>& parts, const char* separator) {
  std::string text;
  for (const T& part : parts) text += (text.empty() ? "" : separator) + cat(part);
  return text;
}

// "-n,--predict,--max-new-tokens" to "-n" and "--predict".
std::vector<std::string> shown_names(const std::string& names) {
  std::vector<std::string> shown;
  bool has_long = false;
  for (const std::string& name : split(names, ',')) {
    if (name.starts_with("--") && has_long) continue;
    has_long = has_long || name.starts_with("--");
    shown.push_back(name);
  }
  return shown;
}

std::string with_default(const std::string& help, const std::string& value) {
  return value.empty() ? help : help + " [" + value + "]";
}

void require_text(const std::string& what, const std::string& kind, const std::string& text) {
  const bool may_be_empty = kind != "MODEL" && kind != "FILE" && kind != "IN";
  MINFER_REQUIRE(Usage, may_be_empty || !text.empty(), what, ": is empty, expected a ",
                 kind == "FILE" ? "file" : "model");
}

bool parse_flag(const std::string& what, const std::string& text) {
  if (text == "1" || text == "true" || text == "on" || text == "yes") return true;
  const bool off = text == "0" || text == "false" || text == "off" || text == "no";
  MINFER_REQUIRE(Usage, off, what, ": ", shortened(text), " is none of true, false");
  return false;
}

}  // namespace

CommandNode::CommandNode(std::string name, std::string description, CommandNode* parent)
    : parent_(parent), name_(std::move(name)), description_(std::move(description)) {}

CommandNode::~CommandNode() = default;

CommandNode& CommandNode::add_command(const std::string& name, const std::string& description,
                                      const std::string& examples, std::function<void()> run) {
  commands_.push_back(std::make_unique<CommandNode>(name, description, this));
  commands_.back()->examples_ = examples;
  commands_.back()->run_ = std::move(run);
  return *commands_.back();
}

void CommandNode::add(const std::string& names, const OptionInfo& info, Parse parse) {
  options_.push_back(info);
  options_.back().names = shown_names(names);
  readers_.push_back(std::make_unique<Option>(
      Option{.names = split(names, ','),
             .shown = options_.back().names.back(),
             .set = [parse = std::move(parse)](const std::string& what,
                                               const std::vector<std::string>& values) {
               parse(what, values.back());
             }}));
}

void CommandNode::add_flag(const std::string& names, bool& value, const std::string& help,
                           Show show) {
  add(names, {{}, "", help, show}, [&value](const std::string& what, const std::string& text) {
    value = parse_flag(what, text);
  });
  readers_.back()->takes_value = false;
}

void CommandNode::add_integer(const std::string& names, int64_t& value, int64_t low, int64_t high,
                              const std::string& help, Show show) {
  add(names, {{}, "N", with_default(help, cat(value)), show},
      [&value, low, high](const std::string& what, const std::string& text) {
        value = parse_integer(what, text, low, high);
      });
  readers_.back()->takes_text = false;
}

void CommandNode::add_integer(const std::string& names, std::optional<int64_t>& value, int64_t low,
                              int64_t high, const std::string& help, Show show) {
  add(names, {{}, "N", help, show},
      [&value, low, high](const std::string& what, const std::string& text) {
        value = parse_integer(what, text, low, high);
      });
  readers_.back()->takes_text = false;
}

void CommandNode::add_number(const std::string& names, float& value, const NumberRange& range,
                             const std::string& help, Show show) {
  add(names, {{}, "X", with_default(help, cat(value)), show},
      [&value, range](const std::string& what, const std::string& text) {
        value = parse_number(what, text, range.least, range.most);
      });
  readers_.back()->takes_text = false;
}

void CommandNode::add_text(const std::string& names, std::string& value, const std::string& kind,
                           const std::string& help, Show show) {
  add(names, {{}, kind, with_default(help, value), show},
      [&value, kind](const std::string& what, const std::string& text) {
        require_text(what, kind, text);
        value = text;
      });
}

void CommandNode::add_text(const std::string& names, std::optional<std::string>& value,
                           const std::string& kind, const std::string& help, Show show) {
  add(names, {{}, kind, help, show},
      [&value, kind](const std::string& what, const std::string& text) {
        require_text(what, kind, text);
        value = text;
      });
}

void CommandNode::add_choice(const std::string& names, std::string& value,
                             const std::vector<std::string>& choices, const std::string& help,
                             Show show) {
  const std::string list = list_text(choices, "|");
  add(names, {{}, list, with_default(help, value), show},
      [&value, choices, list](const std::string& what, const std::string& text) {
        MINFER_REQUIRE(Usage, std::ranges::count(choices, text) > 0, what, ": ", shortened(text),
                       " is none of ", list);
        value = text;
      });
}

void CommandNode::add_integers(const std::string& names, std::vector<int64_t>& value, int64_t low,
                               int64_t high, const std::string& help, Show show) {
  add(names, {{}, "N,...", with_default(help, list_text(value, ",")), show},
      [&value, low, high](const std::string& what, const std::string& text) {
        value.clear();
        for (const std::string& item : split(text, ',')) {
          value.push_back(parse_integer(what, item, low, high));
        }
      });
  readers_.back()->takes_text = false;
}

void CommandNode::add_repeatable(const std::string& names, std::vector<std::string>& values,
                                 const std::string& kind, const std::string& help, Show show) {
  add(names, {{}, kind, help, show}, {});
  readers_.back()->repeatable = true;
  readers_.back()->set = [&values, kind](const std::string& what,
                                         const std::vector<std::string>& given) {
    for (const std::string& text : given) require_text(what, kind, text);
    values = given;
  };
}

void CommandNode::exclude(std::vector<std::string> some, std::vector<std::string> others) {
  rules_.push_back({std::move(some), std::move(others), true});
}

void CommandNode::need(std::vector<std::string> some, std::vector<std::string> others) {
  rules_.push_back({std::move(some), std::move(others), false});
}

CommandNode::Option& CommandNode::option_of(const std::string& term) {
  Option* const found = option_named(term.substr(0, term.find_first_of("!=")));
  MINFER_CHECK(found != nullptr, full_name(), " has no option ", term);
  return *found;
}

bool CommandNode::holds(const std::string& term) {
  const Option& option = option_of(term);
  const size_t equals = term.find('=');
  if (option.given.empty()) return false;
  if (equals == std::string::npos) {
    return option.takes_value || parse_flag(option.given_as, option.given.back());
  }
  const bool is_value = option.given.back() == term.substr(equals + 1);
  return is_value == (term[equals - 1] != '!');
}

// From near to far, so that what has yielded drops no other option; nor does what needs another one
// in vain.
void CommandNode::drop_what_yields() {
  std::vector<const Rule*> rules;
  std::set<int64_t> distances;
  for (const CommandNode* node = this; node != nullptr; node = node->parent_) {
    for (const Rule& rule : node->rules_) rules.push_back(&rule);
    for (const auto& option : node->readers_) distances.insert(option->distance);
  }
  const auto drop_what_needs_in_vain = [&] {
    for (const Rule* rule : rules) {
      if (rule->excludes) continue;
      if (std::ranges::any_of(rule->others, [&](const auto& other) { return holds(other); })) {
        continue;
      }
      for (const std::string& term : rule->some) {
        Option& option = option_of(term);
        if (option.distance > 0) option.given.clear();
      }
    }
  };
  drop_what_needs_in_vain();
  for (const int64_t distance : distances) {
    for (const Rule* rule : rules) {
      if (!rule->excludes) continue;
      for (const std::string& one : rule->some) {
        for (const std::string& other : rule->others) {
          if (!holds(one) || !holds(other)) continue;
          Option &a = option_of(one), &b = option_of(other);
          Option &far = a.distance > b.distance ? a : b, &near = &far == &a ? b : a;
          if (far.distance == distance && near.distance < distance) far.given.clear();
        }
      }
    }
  }
  drop_what_needs_in_vain();
}

std::vector<const CommandNode*> CommandNode::visible_commands() const {
  std::vector<const CommandNode*> visible;
  for (const auto& command : commands_) {
    if (!command->description().empty()) visible.push_back(command.get());
  }
  return visible;
}

std::vector<const CommandNode*> CommandNode::all_visible_commands() const {
  std::vector<const CommandNode*> all;
  for (const CommandNode* command : visible_commands()) {
    all.push_back(command);
    const std::vector<const CommandNode*> below = command->all_visible_commands();
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::string CommandNode::full_name() const {
  return parent_ == nullptr ? name_ : parent_->full_name() + " " + name_;
}

bool CommandNode::Option::has(std::string_view name) const {
  return std::ranges::find(names, name) != names.end();
}

void CommandNode::Option::give(const std::string& what, std::vector<std::string> values,
                               int64_t from) {
  given_as = what;
  given = std::move(values);
  distance = from;
}

std::string CommandNode::Option::key() const {
  const auto found =
      std::ranges::find_if(names, [](const std::string& name) { return name.starts_with("--"); });
  return found == names.end() ? "" : found->substr(2);
}

CommandNode* CommandNode::command_named(std::string_view name) {
  const auto found =
      std::ranges::find_if(commands_, [&](const auto& command) { return command->name_ == name; });
  return found == commands_.end() ? nullptr : found->get();
}

CommandNode::Option* CommandNode::option_named(std::string_view name) {
  for (CommandNode* node = this; node != nullptr; node = node->parent_) {
    for (const auto& option : node->readers_) {
      if (option->has(name)) return option.get();
    }
  }
  return nullptr;
}

CommandNode::Option* CommandNode::any_option_named(std::string_view name) {
  if (Option* const option = option_named(name)) return option;
  for (const auto& command : commands_) {
    if (Option* const option = command->any_option_named(name)) return option;
  }
  return nullptr;
}

std::vector<std::string> CommandNode::all_keys() const {
  std::vector<std::string> keys;
  const auto add_those_of = [&](const CommandNode& node) {
    for (const auto& option : node.readers_) {
      const std::string key = option->key();
      if (!key.empty() && !option->on_command_line_alone) keys.push_back(key);
    }
  };
  for (const CommandNode* node = this; node != nullptr; node = node->parent_) add_those_of(*node);
  for (const CommandNode* below : all_visible_commands()) add_those_of(*below);
  return keys;
}

std::vector<std::string> CommandNode::all_option_names() const {
  std::vector<std::string> names;
  for (const CommandNode* node = this; node != nullptr; node = node->parent_) {
    for (const auto& option : node->readers_) {
      std::ranges::copy_if(option->names, std::back_inserter(names),
                           [](const std::string& name) { return name.starts_with('-'); });
    }
  }
  return names;
}

}  // namespace minfer
