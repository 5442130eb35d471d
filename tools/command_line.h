#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace minfer {

// The most that an option which counts tokens takes.
inline constexpr int64_t kMaxTokens = int64_t{1} << 31;

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

// The root of the command line, or one command, with its options. CLI11 parses; this class keeps it
// to one source file, because it takes long to compile.
//
// Names are written "-n,--predict,--max-new-tokens": the first long one is shown, others are quiet
// aliases; a name without dashes is a positional. Values are parsed whole and without a locale, and
// refused (Usage) with their range. Of several values the last holds.
class CommandNode {
 public:
  CommandNode(CLI::App& app, CommandNode* parent);
  ~CommandNode();

  // A command below this one. Without a description it is in no help.
  CommandNode& add_command(const std::string& name, const std::string& description,
                           const std::string& examples, std::function<void()> run);

  void add_flag(const std::string& names, bool& value, const std::string& help,
                Show show = Show::Always);
  void add_integer(const std::string& names, int64_t& value, int64_t low, int64_t high,
                   const std::string& help, Show show = Show::Always);
  void add_number(const std::string& names, float& value, float low, float high,
                  const std::string& help, Show show = Show::Always);
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
  using Parse = std::function<void(const std::string&)>;
  CLI::Option* add(const std::string& names, const OptionInfo& info, Parse parse);
  const CommandNode* chosen() const;

  CLI::App& app_;
  CommandNode* parent_;
  std::string name_, description_, examples_;
  std::function<void()> run_;
  std::vector<OptionInfo> options_;
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
  // through `print`. Throws Usage, and Input for a --config that is not there.
  std::function<void()> parse(int argc, char** argv,
                              const std::function<void(const std::string&)>& print,
                              const std::function<std::string()>& version);

 private:
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<CommandNode> root_;
};

// The whole of `text` as a number in [low, high]; Usage naming `what` otherwise.
int64_t parse_integer(std::string_view what, std::string_view text, int64_t low, int64_t high);
float parse_number(std::string_view what, std::string_view text, float low, float high);

}  // namespace minfer
