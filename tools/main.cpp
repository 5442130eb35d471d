#include <new>
#include <system_error>

#include "kernels/base/error.h"
#include "models/tokenizer/tokenizer.h"
#include "tools/commands.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"
#include "tools/version.h"

namespace minfer {
namespace {

constexpr const char* kExamples =
    "  minfer generate -m smollm2 --chat \"What is the capital of France?\"\n"
    "  minfer chat -m smollm2\n"
    "  minfer inspect smollm2\n"
    "  minfer bench --synthetic tinyllama-1.1b:f16";

void run(int argc, char** argv) {
  Context context;
  CommandLine line("minfer: large language models on one machine", kExamples);
  add_common_options(line.root(), context.common);
  add_generate_command(line.root(), context);
  add_chat_command(line.root(), context);
  add_tokenize_command(line.root(), context);
  add_inspect_command(line.root(), context);
  add_eval_command(line.root(), context);
  add_quantize_command(line.root(), context);
  add_bench_command(line.root(), context);
  add_completions_command(line.root(), context);
  add_man_command(line.root(), context);

  const auto print = [&context](const std::string& text) { context.out.text(text); };
  const std::function<void()> chosen = line.parse(argc, argv, print, version_text);
  configure_log(context.common);
  context.settings = line.settings();
  Tokenizer::cancel_by(&interrupt_flag());
  chosen();
  context.out.close();
  finish_mpi_ranks();
}

int fail(ErrorKind kind, std::string_view message) {
  if (const std::optional<std::string> prefix = prefix_of_error()) {
    log_error(*prefix + shortened(message, 2000));
  }
  return static_cast<int>(kind);
}

// What the system refuses is no bug, wherever it is met.
ErrorKind kind_of(const std::error_code& code) {
  for (const std::errc input :
       {std::errc::no_such_file_or_directory, std::errc::not_a_directory,
        std::errc::too_many_symbolic_link_levels, std::errc::filename_too_long}) {
    if (code == input) return ErrorKind::Input;
  }
  const bool is_memory = code == std::errc::not_enough_memory ||
                         code == std::errc::resource_unavailable_try_again;  // of a thread
  return is_memory ? ErrorKind::Memory : ErrorKind::System;
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
  } catch (const Cancelled&) {
    return 128 + interrupt_signal();
  } catch (const std::bad_alloc&) {
    write_memory_error();
    return static_cast<int>(ErrorKind::Memory);
  } catch (const std::system_error& e) {
    return fail(kind_of(e.code()), e.what());
  } catch (const std::exception& e) {
    return fail(ErrorKind::Internal, e.what());
  }
}

}  // namespace
}  // namespace minfer

int main(int argc, char** argv) {
  minfer::open_standard_files();
  minfer::install_signal_handlers();
  minfer::install_terminate_handler();
  const int exit_code = minfer::guarded(argc, argv);
  if (exit_code != 0) minfer::end_all_mpi_ranks(exit_code);
  return exit_code;
}
