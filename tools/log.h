#pragma once

#include <string>

#include "tools/command_line.h"

namespace minfer {

// Taken by every command, before or after its name.
struct CommonOptions {
  bool json = false;
  bool quiet = false, verbose = false;
  std::string log_level, log_file;
};
void add_common_options(CommandNode& root, CommonOptions& options);

// The log goes to stderr, and to --log-file as well. Before this call nothing is written.
void configure_log(const CommonOptions& options);

void log_debug(const std::string& message);  // with -v
void log_info(const std::string& message);
void log_warning(const std::string& message);  // "minfer: warning: ..."
void log_error(const std::string& message);    // "minfer: error: ..."

}  // namespace minfer
