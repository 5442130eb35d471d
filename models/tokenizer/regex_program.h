#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex_syntax.h"

namespace minfer {

// The steps that all searches in a text may take together: a fixed number for each of its bytes,
// and some more.
class StepBudget {
 public:
  explicit StepBudget(size_t n_bytes);
  // Throws Input if fewer are left.
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
    Char,        // the n bytes of one character in UTF-8, packed in `a`
    Set,         // a character of sets[a]
    RepeatSet,   // min to max of them, as many as possible first
    LazySet,     // as few as possible first
    OwnSet,      // possessive: as many as possible, and none is given back
    Split,       // goes on at a; if that fails, at b
    Jump,        // to a
    Mark,        // begins what a Cut ends; a: where a negated look goes on if its body fails, or 0
    CutAtomic,   // drops the alternatives that are left since Mark
    CutLook,     // the same, and returns to the position of Mark
    CutNegated,  // the same, and fails
    Back,        // goes back by `min` characters
    AtMark,      // holds only at the position of Mark
    Anchor,      // the RegexAnchor in `a`
    Keep,        // the match begins here
    LoopBegin,   // remembers the position in register a
    LoopCheck,   // leaves the loop, to b, if its body has taken nothing since LoopBegin
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
  std::vector<std::array<bool, 128>> ascii;  // for each set: the ASCII characters in it
  CodeSet word;                              // of \b
  uint32_t n_registers = 0;
};

// Throws Input if the program becomes too large.
RegexProgram compile_regex(ParsedRegex parsed);

// Calls found(begin, end) for the matches from left to right, empty ones too, as the tokenizers
// package does. `text` is valid UTF-8. The backtracking stack is on the heap, and bounded.
void search_regex(const RegexProgram& program, std::string_view text, StepBudget& budget,
                  const std::function<void(size_t begin, size_t end)>& found);

}  // namespace minfer
