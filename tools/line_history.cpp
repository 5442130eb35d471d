#include "tools/line_history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace minfer {
namespace {

namespace fs = std::filesystem;

constexpr int kLines = 1000;                     // that are kept
constexpr uintmax_t kMaxHistoryBytes = 1 << 20;  // of the file, before it is cut to the lines kept
constexpr const char* kFirstLine = "_HiStOrY_V2_\n";  // of a history file of libedit

// The file's name, with its directory made; empty where there can be none.
std::string history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path dir;
  if (state != nullptr && *state == '/') {
    dir = state;
  } else if (home != nullptr && *home == '/') {
    dir = fs::path(home) / ".local/state";
  } else {
    return "";
  }
  dir /= "minfer";
  std::error_code error;
  if (fs::create_directories(dir, error)) ::chmod(dir.c_str(), 0700);
  return error ? "" : (dir / "history").string();
}

// As libedit's strvis writes it, and its strunvis reads it.
std::string escaped(const std::string& line) {
  std::string out;
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte != '\\' && byte != 0x7f) {
      out += c;
    } else {
      out += '\\';
      for (const int shift : {6, 3, 0}) out += static_cast<char>('0' + ((byte >> shift) & 7));
    }
  }
  return out;
}

}  // namespace

LineHistory::LineHistory() : history_(history_init()), path_(history_path()) {
  HistEvent event;
  history(history_.get(), &event, H_SETSIZE, kLines);
  history(history_.get(), &event, H_SETUNIQUE, 1);
  std::error_code error;
  const uintmax_t size = path_.empty() ? 0 : fs::file_size(path_, error);
  if (error || size == 0) return;
  const bool is_history = history(history_.get(), &event, H_LOAD, path_.c_str()) >= 0;
  if (!is_history) path_.clear();  // something else, which stays as it is
  if (is_history && size > kMaxHistoryBytes) history(history_.get(), &event, H_SAVE, path_.c_str());
}

void LineHistory::add(const std::string& line) {
  HistEvent event;
  history(history_.get(), &event, H_ENTER, line.c_str());
  if (path_.empty()) return;
  const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  struct stat status {};
  const bool is_new = ::fstat(file, &status) == 0 && status.st_size == 0;
  const std::string text = (is_new ? kFirstLine : "") + escaped(line) + "\n";
  (void)!::write(file, text.data(), text.size());  // what is not kept is no failure
  ::close(file);
}

}  // namespace minfer
