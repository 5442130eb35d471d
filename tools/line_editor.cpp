#include "tools/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "tools/line_history.h"
#include "tools/process.h"

namespace minfer {
namespace {

// The terminal has another size, or the process runs again after Ctrl-Z.
std::atomic<bool> terminal_changed{false};

extern "C" void on_terminal_change(int) { terminal_changed.store(true); }

// Takes the two signals while a line is read.
class TerminalSignals {
 public:
  TerminalSignals() {
    struct sigaction action = {};
    action.sa_handler = on_terminal_change;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGWINCH, &action, &window_);
    ::sigaction(SIGCONT, &action, &continued_);
  }
  ~TerminalSignals() {
    ::sigaction(SIGWINCH, &window_, nullptr);
    ::sigaction(SIGCONT, &continued_, nullptr);
  }
  TerminalSignals(const TerminalSignals&) = delete;
  TerminalSignals& operator=(const TerminalSignals&) = delete;

 private:
  struct sigaction window_, continued_;
};

// libedit counts columns in the characters of the locale; texts are UTF-8.
void use_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

class LineEditor final : public LineReader {
 public:
  explicit LineEditor(std::FILE* out) : out_(out) {
    use_utf8_locale();
    editor_.reset(::el_init("minfer", stdin, out, stderr));
    MINFER_REQUIRE(System, editor_ != nullptr, "cannot edit lines on this terminal");
    EditLine* const el = editor_.get();
    ::el_set(el, EL_CLIENTDATA, this);
    ::el_set(el, EL_PROMPT, &LineEditor::prompt);
    ::el_set(el, EL_GETCFN, &LineEditor::next_character);
    ::el_set(el, EL_HIST, ::history, history_.get());
    ::el_set(el, EL_EDITOR, "emacs");
    ::el_set(el, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    ::el_set(el, EL_BIND, "^I", "ed-insert", nullptr);  // a tab in pasted text
    ::el_source(el, nullptr);                           // ~/.editrc
  }

  Got read(const std::string& prompt, std::string& line) override {
    const TerminalSignals signals;
    prompt_ = prompt;
    ::el_resize(editor_.get());
    ::el_set(editor_.get(), EL_PREP_TERM, 1);  // before the prompt: keys typed since are libedit's
    int n = 0;
    const char* text = ::el_gets(editor_.get(), &n);
    if (interrupt_flag().load()) {
      std::fputs("^C\n", out_);
      std::fflush(out_);
      return Got::Interrupt;
    }
    if (text == nullptr) {
      MINFER_REQUIRE(System, n >= 0 || errno == 0 || errno == EIO, "stdin: ", std::strerror(errno));
      std::fputs("\n", out_);
      std::fflush(out_);
      return Got::EndOfInput;
    }
    line = text;
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) history_.add(line);
    return Got::Line;
  }
  bool is_interactive() const override { return true; }

 private:
  static LineEditor& of(EditLine* el) {
    void* self = nullptr;
    ::el_get(el, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }
  static char* prompt(EditLine* el) { return of(el).prompt_.data(); }

  // One character: 1; the end of the input: 0; Ctrl-C or an error: -1.
  static int next_character(EditLine* el, wchar_t* character) {
    std::string bytes;
    do {
      Woken woken;
      while ((woken = wait_for_stdin()) == Woken::Signal) {
        if (terminal_changed.exchange(false)) refresh(el);
      }
      if (woken == Woken::Interrupt) return -1;
      char byte = 0;
      errno = 0;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return static_cast<int>(n);
      bytes += byte;
    } while (bytes.empty() || utf8_incomplete_tail(bytes) == bytes.size());
    *character = decoded(bytes);
    return 1;
  }

  static void refresh(EditLine* el) {
    ::el_set(el, EL_PREP_TERM, 0);  // the shell has set the terminal to its own mode meanwhile
    ::el_set(el, EL_PREP_TERM, 1);
    ::el_resize(el);
    ::el_set(el, EL_REFRESH);
  }

  static wchar_t decoded(const std::string& bytes) {
    if (utf8_char_bytes(bytes) != bytes.size()) return L'\ufffd';
    const auto lead = static_cast<unsigned char>(bytes[0]);
    if (bytes.size() == 1) return static_cast<wchar_t>(lead);
    wchar_t code = static_cast<wchar_t>(lead & (0xff >> (bytes.size() + 1)));
    for (size_t i = 1; i < bytes.size(); ++i) code = (code << 6) | (bytes[i] & 0x3f);
    return code;
  }

  struct End {
    void operator()(EditLine* el) const { ::el_end(el); }
  };
  std::FILE* out_;
  std::string prompt_;
  LineHistory history_;
  std::unique_ptr<EditLine, End> editor_;
};

}  // namespace

std::unique_ptr<LineReader> make_line_editor(std::FILE* out) {
  return std::make_unique<LineEditor>(out);
}

}  // namespace minfer
