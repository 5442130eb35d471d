#include "tools/chat_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "loaders/output_file.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxPromptBytes = 16 << 20;  // of a prompt, and so of a conversation

std::string with_home(const std::string& path) {
  MINFER_REQUIRE(Usage, !path.empty(), "which file? (FILE.json)");
  const char* home = std::getenv("HOME");
  return path.starts_with("~/") && home != nullptr ? home + path.substr(1) : path;
}

bool holds_conversation(const std::string& path) {
  try {
    read_conversation(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<ChatMessage> read_conversation(const std::string& path) {
  const std::string text = read_whole_file(with_home(path), kMaxPromptBytes);
  try {
    return parse_chat_messages(text);
  } catch (const Error& e) {
    throw e.in(shown_path(path));
  }
}

void write_conversation(const std::string& path, const std::vector<ChatMessage>& messages) {
  const std::string output = with_home(path);
  const bool exists = path_exists(output);
  MINFER_REQUIRE(System, !exists || holds_conversation(output), shown_path(path),
                 ": exists and holds no conversation: it is not replaced");
  const fs::path path_of_output = fs::absolute(output);
  const fs::path part = path_of_output.parent_path() /
                        cat(".", path_of_output.filename().string(), ".minfer-", ::getpid());
  struct Removal {
    const fs::path& path;
    ~Removal() { ::unlink(path.c_str()); }  // what has its name already is not there
  } removal{part};
  write_file(part.string(), chat_messages_json(messages));
  MINFER_REQUIRE(System, std::rename(part.c_str(), path_of_output.c_str()) == 0, shown_path(path),
                 ": ", std::strerror(errno));
}

}  // namespace minfer
