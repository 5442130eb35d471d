#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex_syntax.h"

namespace minfer {

// How many steps searches may take together. A text is given a number of them for each of its
// bytes.
class StepBudget {
 public:
  explicit StepBudget(size_t n_bytes);
  // Throws Input where fewer are left.
  void take(uint64_t steps) {
    if (steps > left_) refuse();
    left_ -= steps;
  }

 private:
  [[noreturn]] static void refuse();
  uint64_t left_;
};

struct RegexInstruction {
  enum class Op : uint8_t {
    Char,        // the n UTF-8 bytes in `a`
    Set,         // a character of sets[a]
    RepeatSet,   // min to max of them, as many as possible first
    LazySet,     // as few as possible first
    OwnSet,      // as many as possible, and none is given back
    Split,       // go on at a; if that fails at b
    Jump,        // to a
    Mark,        // begins what Cut ends; a: where a failed look that is negated goes on, or 0
    CutAtomic,   // forgets the other ways since Mark
    CutLook,     // and goes back in the text
    CutNegated,  // and fails
    Back,        // `min` characters
    AtMark,      // only where Mark was
    Anchor,      // a
    Keep,        // the match begins here
    LoopBegin,   // remembers the position in register a
    LoopCheck,   // leaves a loop, to b, whose body has taken nothing since
    Match
  };
  Op op;
  uint8_t n = 0;
  uint32_t a = 0, b = 0;
  uint32_t min = 0, max = 0;  // max of kNoLimit: any number
  static constexpr uint32_t kNoLimit = UINT32_MAX;
};

// A pattern as instructions.
struct RegexProgram {
  std::vector<RegexInstruction> code;
  std::vector<CodeSet> sets;
  std::vector<std::array<bool, 128>> ascii;  // of each set
  CodeSet word;                              // of \b
  uint32_t n_registers = 0;
};

// Throws Input where it becomes too large.
RegexProgram compile_regex(ParsedRegex parsed);

// Calls found(begin, end) for the matches from left to right, empty ones too, as the tokenizers
// package goes through them. `text` is valid UTF-8. The stack is on the heap, and bounded.
void search_regex(const RegexProgram& program, std::string_view text, StepBudget& budget,
                  const std::function<void(size_t begin, size_t end)>& found);

}  // namespace minfer
