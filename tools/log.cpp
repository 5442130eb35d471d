#include "tools/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>

#include "kernels/base/error.h"

namespace minfer {
namespace {

// "minfer: error: " before errors and warnings; status lines stand for themselves.
class Prefix : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string_view prefix = message.level == spdlog::level::err    ? "minfer: error: "
                                    : message.level == spdlog::level::warn ? "minfer: warning: "
                                                                           : "";
    out.append(prefix.data(), prefix.data() + prefix.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Prefix>();
  }
};

// Names of files and what models say of themselves may hold anything.
std::string on_one_line(const std::string& message) {
  return shortened(message, std::string::npos);
}

const std::vector<std::string> kLevels = {"debug", "info", "warning", "error", "off"};

spdlog::level::level_enum chosen_level(const CommonOptions& options) {
  if (!options.log_level.empty()) return spdlog::level::from_str(options.log_level);
  if (options.quiet) return spdlog::level::err;
  return options.verbose ? spdlog::level::debug : spdlog::level::info;
}

spdlog::sink_ptr stderr_sink() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Prefix>('*').set_pattern("%*%v");
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_formatter(std::move(formatter));
  return sink;
}

}  // namespace

void add_common_options(CommandNode& root, CommonOptions& options) {
  root.add_flag("--json", options.json, "Print one JSON object instead of text");
  root.add_flag("-q,--quiet", options.quiet, "Nothing on stderr but errors");
  root.add_flag("-v,--verbose", options.verbose, "More on stderr");
  root.add_choice("--log-level", options.log_level, kLevels, "What goes to stderr and the log",
                  Show::More);
  root.add_text("--log-file", options.log_file, "FILE", "Append the log to FILE as well",
                Show::More);
}

void configure_log(const CommonOptions& options) {
  std::vector<spdlog::sink_ptr> sinks = {stderr_sink()};
  if (!options.log_file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.log_file));
    } catch (const spdlog::spdlog_ex& e) {
      throw Error(ErrorKind::System, cat("--log-file: ", shortened(e.what(), 200)));
    }
    sinks.back()->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }
  auto logger = std::make_shared<spdlog::logger>("minfer", sinks.begin(), sinks.end());
  logger->set_level(chosen_level(options));
  logger->flush_on(spdlog::level::debug);
  if (!options.log_file.empty()) {
    // A log that cannot be written, on a full disk, is told once: what the command does goes on.
    logger->set_error_handler([to_stderr = sinks.front(),
                               once = std::make_shared<std::once_flag>()](const std::string& why) {
      std::call_once(*once, [&] {
        spdlog::logger("minfer", to_stderr).error("--log-file: {}", shortened(why, 200));
      });
    });
  }
  spdlog::set_default_logger(std::move(logger));
}

void log_debug(const std::string& message) { spdlog::debug(on_one_line(message)); }
void log_info(const std::string& message) { spdlog::info(on_one_line(message)); }
void log_warning(const std::string& message) { spdlog::warn(on_one_line(message)); }
void log_error(const std::string& message) { spdlog::error(on_one_line(message)); }

}  // namespace minfer
