#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "kernels/base/error.h"
#include "tools/output.h"
#include "tools/process.h"

namespace minfer {
namespace {

constexpr int64_t kBarCells = 30;

// Progress is for eyes: a failed write is no fault.
void write_stderr(const std::string& text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

Progress::Progress(std::string label, bool quiet)
    : label_(std::move(label)),
      enabled_(!quiet && is_terminal(STDERR_FILENO)),
      started_(now_seconds()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (std::exchange(shown_, false)) write_stderr("\r\x1b[K");
}

void Progress::update(int64_t done, int64_t total) {
  throw_if_interrupted();
  show(done, total);
}

void Progress::show(int64_t done, int64_t total) {
  if (is_due(done, total)) show("");
}

void Progress::update(int64_t done, int64_t total, const std::string& figure) {
  throw_if_interrupted();
  if (!is_due(done, total)) return;
  const double left = (now_seconds() - started_) * double(total - done) / double(done);
  show(fmt::format("  {}  {}:{:02} left", figure, int64_t(left) / 60, int64_t(left) % 60));
}

// Whether there is something new to show.
bool Progress::is_due(int64_t done, int64_t total) {
  if (!enabled_ || done <= 0 || total <= 0 || now_seconds() - started_ < 0.5) return false;
  const int64_t percent = done * 100 / total;
  return std::exchange(last_percent_, percent) != percent;
}

void Progress::show(const std::string& detail) {
  shown_ = true;
  const int64_t cells = last_percent_ * kBarCells / 100;
  write_stderr(cat("\r", label_, " [", std::string(size_t(cells), '#'),
                   std::string(size_t(kBarCells - cells), '.'), "] ", last_percent_, " %", detail,
                   "\x1b[K"));
}

std::function<void(int64_t, int64_t)> Progress::callback() {
  return [this](int64_t done, int64_t total) { update(done, total); };
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace minfer
