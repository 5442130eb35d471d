#include <spdlog/spdlog.h>

#include <new>

#include "kernels/base/error.h"
#include "tools/commands.h"
#include "tools/config_file.h"
#include "tools/help.h"
#include "tools/process.h"
#include "tools/version.h"

namespace minfer {
namespace {

// "--stop=" as "--stop" and an empty value: CLI11 would take the next argument as the value.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> args;
  bool only_positionals = false;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    only_positionals = only_positionals || arg == "--";
    const bool empty_value = arg.starts_with("--") && arg.find('=') == arg.size() - 1;
    if (!only_positionals && empty_value) {
      arg.pop_back();
      args.push_back(arg);
      arg.clear();
    }
    args.push_back(std::move(arg));
  }
  std::ranges::reverse(args);  // as CLI11 wants them
  return args;
}

void run(int argc, char** argv) {
  Context context;
  CLI::App root("minfer: large language models on one machine", "minfer");
  root.footer(
      "  minfer generate -m smollm2 --chat \"What is the capital of France?\"\n"
      "  minfer inspect model.gguf\n"
      "  minfer bench --synthetic tinyllama-1.1b:f16");
  root.formatter(make_help_formatter());
  root.set_help_flag("-h,--help", "Help with examples");
  root.set_help_all_flag("--help-all", "Help with every option");
  root.set_version_flag("--version", version_text, "Version, compiler and CPU path");
  root.require_subcommand(1);
  root.fallthrough();
  add_common_options(root, context.common);
  add_config_file_option(root);
  const std::vector<Command> commands = {
      add_generate_command(root, context),    add_tokenize_command(root, context),
      add_inspect_command(root, context),     add_bench_command(root, context),
      add_completions_command(root, context), add_man_command(root, context)};
  name_environment_variables(root);

  try {
    root.parse(arguments(argc, argv));
  } catch (const CLI::CallForHelp&) {
    return context.out.text(root.help());
  } catch (const CLI::CallForAllHelp&) {
    return context.out.text(root.help("", CLI::AppFormatMode::All));
  } catch (const CLI::CallForVersion& version) {
    return context.out.line(version.what());
  } catch (const CLI::FileError& e) {
    throw Error(ErrorKind::Input, e.what());
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorKind::Usage, cat(e.what(), " (minfer --help)"));
  }
  configure_log(context.common);
  for (const Command& command : commands) {
    if (command.app->parsed()) command.run();
  }
  context.out.close();
}

int fail(ErrorKind kind, std::string_view message) {
  spdlog::error(shortened(message, 2000));
  return static_cast<int>(kind);
}

int guarded(int argc, char** argv) {
  try {
    configure_log({});  // for what fails before the options are known
    run(argc, argv);
    return 0;
  } catch (const Error& e) {
    return fail(e.kind(), e.what());
  } catch (const StdoutClosed&) {
    return 141;
  } catch (const Interrupted& e) {
    return 128 + e.signal;
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::Memory, "out of memory");
  } catch (const std::exception& e) {
    return fail(ErrorKind::Internal, e.what());
  }
}

}  // namespace
}  // namespace minfer

int main(int argc, char** argv) {
  minfer::open_standard_files();
  minfer::install_signal_handlers();
  return minfer::guarded(argc, argv);
}
