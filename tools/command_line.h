#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// The most that an option which counts tokens takes.
inline constexpr int64_t kMaxTokens = int64_t{1} << 31;

// The values that an option takes, both ends included.
struct NumberRange {
  float least, most;
};

// Whether an option is in --help, or in --help-all alone.
enum class Show { Always, More };

// What help, manual page and completions say about one option.
struct OptionInfo {
  std::vector<std::string> names;  // "-n", "--predict", or the name of a positional
  std::string value;               // "N", "f32|f16"; empty for a flag
  std::string help;                // with the default value
  Show show = Show::Always;

  bool positional() const { return !names.front().starts_with('-'); }
  bool is_choice() const { return value.find('|') != std::string::npos; }
};

// The root of the command line, or one command, with its options.
//
// Names are written "-n,--predict,--max-new-tokens": the first long one is shown, others are quiet
// aliases; a name without dashes is a positional. Values are parsed whole and without a locale, and
// refused (Usage) with their range. Of several values the last holds.
class CommandNode {
 public:
  CommandNode(std::string name, std::string description, CommandNode* parent);
  ~CommandNode();

  // A command below this one. Without a description it is in no help.
  CommandNode& add_command(const std::string& name, const std::string& description,
                           const std::string& examples, std::function<void()> run);

  void add_flag(const std::string& names, bool& value, const std::string& help,
                Show show = Show::Always);
  void add_integer(const std::string& names, int64_t& value, int64_t low, int64_t high,
                   const std::string& help, Show show = Show::Always);
  // None where it is not given; the help says what that means.
  void add_integer(const std::string& names, std::optional<int64_t>& value, int64_t low,
                   int64_t high, const std::string& help, Show show = Show::Always);
  void add_number(const std::string& names, float& value, const NumberRange& range,
                  const std::string& help, Show show = Show::Always);
  // An empty text is refused where `kind` is FILE or MODEL.
  void add_text(const std::string& names, std::string& value, const std::string& kind,
                const std::string& help, Show show = Show::Always);
  void add_text(const std::string& names, std::optional<std::string>& value,
                const std::string& kind, const std::string& help, Show show = Show::Always);
  void add_choice(const std::string& names, std::string& value,
                  const std::vector<std::string>& choices, const std::string& help,
                  Show show = Show::Always);
  // Integers with commas between them, as in "512,2048".
  void add_integers(const std::string& names, std::vector<int64_t>& value, int64_t low,
                    int64_t high, const std::string& help, Show show = Show::Always);
  // Given any number of times, one value each.
  void add_repeatable(const std::string& names, std::vector<std::string>& values,
                      const std::string& kind, const std::string& help, Show show = Show::Always);

  // Each of `some` excludes each of `others`, or has no meaning without one of `others`. So that
  // what stands in a file or the environment for other calls spoils none, such an option of theirs
  // yields to one that comes before it, or to the lack of one. On the command line such options are
  // a mistake, which the command itself refuses. Names as in "--json", "PROMPT", of this node or of
  // one above it; with "--draft=lookup" or "--parallel!=1", where only that value counts, or each
  // but that. A flag counts where it is true.
  void exclude(std::vector<std::string> some, std::vector<std::string> others);
  void need(std::vector<std::string> some, std::vector<std::string> others);

  const CommandNode* parent() const { return parent_; }
  const std::string& name() const { return name_; }
  std::string full_name() const;  // "minfer bench limits"
  const std::string& description() const { return description_; }
  const std::string& examples() const { return examples_; }
  const std::vector<OptionInfo>& options() const { return options_; }
  // Those below this one that help shows.
  std::vector<const CommandNode*> visible_commands() const;
  // The same with those below them.
  std::vector<const CommandNode*> all_visible_commands() const;

 private:
  friend class CommandLine;
  friend class ArgumentReader;

  // How an option is read. `what` is its name in messages: that of an argument, a variable of the
  // environment or a line of a file.
  struct Option {
    std::vector<std::string> names;  // all of them
    std::string shown;               // in messages
    bool takes_value = true, repeatable = false;
    bool takes_text = true;              // any text, not a number
    bool on_command_line_alone = false;  // not in a file or the environment
    std::function<void(const std::string& what, const std::vector<std::string>& values)> set;
    std::vector<std::string> given = {};  // wherever that was
    std::string given_as = {};            // `what`
    // The command line 0, then a file, the more the less deep its section lies, the environment.
    int64_t distance = 0;

    bool has(std::string_view name) const;
    // "temp" of --temp, as a file and the environment name it; empty where there is no long name.
    std::string key() const;
    void give(const std::string& what, std::vector<std::string> values, int64_t from);
  };
  struct Rule {
    std::vector<std::string> some, others;  // terms: exclude
    bool excludes;                          // else some need one of the others
  };
  using Parse = std::function<void(const std::string& what, const std::string& text)>;
  void add(const std::string& names, const OptionInfo& info, Parse parse);
  CommandNode* command_named(std::string_view name);
  Option* option_named(std::string_view name);      // of this one or one above it
  Option* any_option_named(std::string_view name);  // of those below it too
  Option& option_of(const std::string& term);       // of a Rule
  bool holds(const std::string& term);
  void drop_what_yields();
  std::vector<std::string> all_option_names() const;
  std::vector<std::string> all_keys() const;  // of those below it too

  CommandNode* parent_;
  std::string name_, description_, examples_;
  std::function<void()> run_;
  std::vector<OptionInfo> options_;
  std::vector<std::unique_ptr<Option>> readers_;  // of the options that have a value
  std::vector<Rule> rules_;
  std::vector<std::unique_ptr<CommandNode>> commands_;
};

// The whole command line. Every option can also be set by MINFER_<OPTION> and by a line of the file
// of --config; the command line comes first, then the file, then the environment.
class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& examples);
  ~CommandLine();

  CommandNode& root() { return *root_; }

  // Parses and returns what is to be run: the chosen command, or one that prints help or version
  // through `print`. Throws Usage, and Input for a --config that is not there or is no TOML.
  std::function<void()> parse(int argc, char** argv,
                              const std::function<void(const std::string&)>& print,
                              const std::function<std::string()>& version);

  // The command that parse() has chosen, and the options that were given, wherever that was: the
  // same for all that run the same.
  std::string settings() const;

 private:
  void set(const CommandNode::Option& option);
  void read_defaults(CommandNode& chosen);
  void read_environment(CommandNode& chosen);
  void read_config(const std::string& path, CommandNode& chosen);

  std::unique_ptr<CommandNode> root_;
  std::string command_;
  std::map<std::string, std::string> given_;  // values of options
  bool help_ = false, help_all_ = false, version_ = false;
  std::string config_;
};

// The whole of `text` as a number in [low, high]; Usage naming `what` otherwise.
int64_t parse_integer(std::string_view what, std::string_view text, int64_t low, int64_t high);
float parse_number(std::string_view what, std::string_view text, float low, float high);

}  // namespace minfer
