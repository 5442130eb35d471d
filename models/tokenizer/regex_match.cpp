#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer/regex_program.h"

namespace minfer {
namespace {

using Op = RegexInstruction::Op;

// A pattern for words takes ten steps or so a byte. What needs more grows with the square of a run
// of blanks, or worse.
constexpr uint64_t kStepsPerByte = 1024, kSteps = 1 << 16;
constexpr size_t kMaxFramesPerByte = 2, kMaxFrames = 1 << 20;

// Where to go on when a way has failed.
struct Frame {
  enum class Kind : uint8_t { Way, Greedy, Lazy, Mark, Register, Keep };
  Kind kind;
  uint32_t pc = 0;  // the register's number; a mark's way where it fails, or 0
  size_t at = 0;    // in the text; what the register held
  size_t more = 0;  // Greedy: the shortest end; Lazy: characters still allowed; Mark: the outer one
};

class Matcher {
 public:
  Matcher(const RegexProgram& program, std::string_view text, StepBudget& budget)
      : program_(program),
        text_(text),
        budget_(budget),
        max_frames_(kMaxFrames + kMaxFramesPerByte * text.size()),
        registers_(program.n_registers) {}

  // Looks for the first match from `from` on.
  bool search(size_t from) {
    search_begin_ = from;
    for (size_t begin = from;; begin += utf8_char_bytes(text_.substr(begin))) {
      if (match(begin)) return true;
      if (begin == text_.size()) return false;
    }
  }
  size_t begin() const { return keep_; }
  size_t end() const { return at_; }

 private:
  static constexpr size_t kNoMark = static_cast<size_t>(-1);

  bool match(size_t begin) {
    frames_.clear();
    mark_ = kNoMark;
    pc_ = 0;
    at_ = keep_ = begin;
    for (uint64_t steps = 1;; ++steps) {
      const RegexInstruction& instruction = program_.code[pc_];
      if (instruction.op == Op::Match) {
        budget_.take(steps);
        keep_ = std::min(keep_, at_);
        return true;
      }
      if (!run(instruction) && !go_back()) {
        budget_.take(steps);
        return false;
      }
      if (steps == 1024) {
        budget_.take(steps);
        steps = 0;
      }
    }
  }

  // Whether the instruction holds; then pc_ and at_ have gone on.
  bool run(const RegexInstruction& it) {
    switch (it.op) {
      case Op::Char:
        if (!takes_bytes(it)) return false;
        break;
      case Op::Set: {
        const size_t n = set_bytes(it.a, at_);
        if (n == 0) return false;
        at_ += n;
        break;
      }
      case Op::RepeatSet:
      case Op::LazySet:
      case Op::OwnSet:
        if (!repeat(it)) return false;
        break;
      case Op::Split:
        push({Frame::Kind::Way, it.b, at_});
        pc_ = it.a;
        return true;
      case Op::Jump:
        pc_ = it.a;
        return true;
      case Op::Mark:
        push({Frame::Kind::Mark, it.a, at_, mark_});
        mark_ = frames_.size() - 1;
        break;
      case Op::CutAtomic:
        cut();
        break;
      case Op::CutLook:
        at_ = frames_[mark_].at;
        cut();
        break;
      case Op::CutNegated:
        cut();
        return false;
      case Op::Back:
        if (!back(it.min)) return false;
        break;
      case Op::AtMark:
        if (at_ != frames_[mark_].at) return false;
        break;
      case Op::Anchor:
        if (!holds(static_cast<RegexAnchor>(it.a))) return false;
        break;
      case Op::Keep:
        push({Frame::Kind::Keep, 0, keep_});
        keep_ = at_;
        break;
      case Op::LoopBegin:
        push({Frame::Kind::Register, it.a, registers_[it.a]});
        registers_[it.a] = at_;
        break;
      case Op::LoopCheck:
        if (registers_[it.a] == at_) {
          pc_ = it.b;
          return true;
        }
        break;
      case Op::Match:
        break;
    }
    ++pc_;
    return true;
  }

  // Takes the last way that is left; false: there is none.
  bool go_back() {
    for (uint64_t steps = 1; !frames_.empty(); ++steps) {
      Frame& frame = frames_.back();
      bool goes_on = true;
      switch (frame.kind) {
        case Frame::Kind::Way:
          pc_ = frame.pc;
          at_ = frame.at;
          frames_.pop_back();
          break;
        case Frame::Kind::Greedy:
          pc_ = frame.pc;
          at_ = frame.at = previous(frame.at);
          if (frame.at <= frame.more) frames_.pop_back();
          break;
        case Frame::Kind::Lazy:
          goes_on = take_one_more(frame);
          break;
        case Frame::Kind::Mark:
          mark_ = frame.more;
          pc_ = frame.pc;
          at_ = frame.at;
          goes_on = frame.pc != 0;
          frames_.pop_back();
          break;
        case Frame::Kind::Register:
          registers_[frame.pc] = frame.at;
          goes_on = false;
          frames_.pop_back();
          break;
        case Frame::Kind::Keep:
          keep_ = frame.at;
          goes_on = false;
          frames_.pop_back();
          break;
      }
      if (goes_on) {
        if (steps > 1) budget_.take(steps);
        return true;
      }
    }
    return false;
  }

  bool take_one_more(Frame& frame) {
    const RegexInstruction& it = program_.code[frame.pc];
    const size_t n = set_bytes(it.a, frame.at);
    if (n == 0) {
      frames_.pop_back();
      return false;
    }
    at_ = frame.at += n;
    pc_ = frame.pc + 1;
    if (--frame.more == 0) frames_.pop_back();
    return true;
  }

  void push(const Frame& frame) {
    MINFER_REQUIRE(Input, frames_.size() < max_frames_, "matching the text needs more than ",
                   max_frames_, " ways to go back to");
    frames_.push_back(frame);
  }

  void cut() {
    const size_t outer = frames_[mark_].more;
    // Registers need no restoring: only what lies within has written them.
    frames_.resize(mark_, Frame{});
    mark_ = outer;
  }

  bool takes_bytes(const RegexInstruction& it) {
    if (text_.size() - at_ < it.n) return false;
    for (size_t i = 0; i < it.n; ++i) {
      if (static_cast<unsigned char>(text_[at_ + i]) != (it.a >> (8 * i) & 0xff)) return false;
    }
    at_ += it.n;
    return true;
  }

  // Bytes of the character at `at` if it belongs to the set, else 0.
  size_t set_bytes(uint32_t set, size_t at) const {
    if (at == text_.size()) return 0;
    const auto lead = static_cast<unsigned char>(text_[at]);
    if (lead < 0x80) return program_.ascii[set][lead] ? 1 : 0;
    const std::string_view rest = text_.substr(at);
    if (!program_.sets[set].contains(utf8_code(rest))) return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  }

  bool repeat(const RegexInstruction& it) {
    const size_t begin = at_;
    const uint32_t wanted = it.op == Op::LazySet ? it.min : it.max;
    uint32_t n_chars = 0;
    size_t shortest = begin;  // the end of the first `min`
    while (n_chars < wanted) {
      const size_t n = set_bytes(it.a, at_);
      if (n == 0) break;
      at_ += n;
      ++n_chars;
      if (n_chars == it.min) shortest = at_;
    }
    budget_.take(n_chars);
    if (n_chars < it.min) return false;
    if (it.op == Op::RepeatSet && at_ > shortest)
      push({Frame::Kind::Greedy, pc_ + 1, at_, shortest});
    if (it.op == Op::LazySet && it.max > it.min)
      push({Frame::Kind::Lazy, pc_, at_, it.max - it.min});
    return true;
  }

  size_t previous(size_t at) const {
    do {
      --at;
    } while ((static_cast<unsigned char>(text_[at]) & 0xc0) == 0x80);
    return at;
  }

  bool back(uint32_t n_chars) {
    budget_.take(n_chars);
    for (; n_chars > 0; --n_chars) {
      if (at_ == 0) return false;
      at_ = previous(at_);
    }
    return true;
  }

  bool is_word(size_t at) const { return program_.word.contains(utf8_code(text_.substr(at))); }

  bool holds(RegexAnchor anchor) const {
    const size_t size = text_.size();
    switch (anchor) {
      case RegexAnchor::TextBegin:
        return at_ == 0;
      case RegexAnchor::TextEnd:
        return at_ == size;
      case RegexAnchor::TextEndOrLine:
        return at_ == size || (at_ + 1 == size && text_[at_] == '\n');
      case RegexAnchor::LineBegin:
        return at_ == 0 || (text_[at_ - 1] == '\n' && at_ < size);
      case RegexAnchor::LineEnd:
        return at_ == size || text_[at_] == '\n';
      case RegexAnchor::SearchBegin:
        return at_ == search_begin_;
      case RegexAnchor::WordBoundary:
      case RegexAnchor::NoWordBoundary: {
        const bool before = at_ > 0 && is_word(previous(at_));
        const bool behind = at_ < size && is_word(at_);
        return (before != behind) == (anchor == RegexAnchor::WordBoundary);
      }
    }
    return false;
  }

  const RegexProgram& program_;
  std::string_view text_;
  StepBudget& budget_;
  size_t max_frames_;
  std::vector<size_t> registers_;
  std::vector<Frame> frames_;
  size_t search_begin_ = 0;
  uint32_t pc_ = 0;
  size_t at_ = 0, keep_ = 0, mark_ = kNoMark;
};

}  // namespace

StepBudget::StepBudget(size_t n_bytes) : left_(kSteps + kStepsPerByte * n_bytes) {}

void StepBudget::refuse() {
  throw Error(ErrorKind::Input, cat("matching the text takes more than ", kStepsPerByte,
                                    " steps for each of its bytes"));
}

void search_regex(const RegexProgram& program, std::string_view text, StepBudget& budget,
                  const std::function<void(size_t, size_t)>& found) {
  Matcher matcher(program, text, budget);
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t last_end = kNone;
  for (size_t from = 0; from <= text.size();) {
    if (!matcher.search(from)) return;
    if (matcher.begin() == matcher.end() && matcher.end() == last_end) {
      from += std::max<size_t>(1, utf8_char_bytes(text.substr(from)));
      continue;
    }
    from = last_end = matcher.end();
    found(matcher.begin(), matcher.end());
  }
}

}  // namespace minfer
