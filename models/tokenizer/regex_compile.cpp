#include <array>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer/regex_program.h"

namespace minfer {
namespace {

using Kind = RegexNode::Kind;
using Op = RegexInstruction::Op;

constexpr size_t kMaxInstructions = 1 << 16;
constexpr size_t kMaxWork = 1 << 18;  // nodes, each as often as it is repeated

// Recursion is as deep as the pattern is nested, which parsing bounds.
class Compiler {
 public:
  explicit Compiler(ParsedRegex& parsed) : parsed_(parsed) {}

  RegexProgram run() {
    emit(parsed_.root);
    add({Op::Match});
    for (const CodeSet& set : parsed_.sets) {
      std::array<bool, 128>& ascii = program_.ascii.emplace_back();
      for (char32_t code = 0; code < ascii.size(); ++code) ascii[code] = set.contains(code);
    }
    program_.sets = std::move(parsed_.sets);
    return std::move(program_);
  }

 private:
  uint32_t here() const { return static_cast<uint32_t>(program_.code.size()); }

  uint32_t add(const RegexInstruction& instruction) {
    MINFER_REQUIRE(Input, program_.code.size() < kMaxInstructions, "too large when compiled");
    program_.code.push_back(instruction);
    return here() - 1;
  }
  RegexInstruction& at(uint32_t index) { return program_.code[index]; }

  void emit(const RegexNode& node) {
    MINFER_REQUIRE(Input, ++work_ <= kMaxWork, "too large when compiled");
    switch (node.kind) {
      case Kind::Set:
        return emit_set(node.set);
      case Kind::Concat:
        for (const RegexNode& child : node.children) emit(child);
        return;
      case Kind::Alternate:
        return emit_alternate(node);
      case Kind::Repeat:
        return emit_repeat(node, false);
      case Kind::Atomic:
        return emit_atomic(node.children[0]);
      case Kind::Look:
        return emit_look(node);
      case Kind::Anchor:
        return emit_anchor(node.anchor);
      case Kind::Keep:
        add({Op::Keep});
        return;
    }
  }

  void emit_set(uint32_t set) {
    const std::vector<CodeRange>& ranges = parsed_.sets[set].ranges();
    if (ranges.size() != 1 || ranges[0].first != ranges[0].last) {
      add({.op = Op::Set, .a = set});
      return;
    }
    std::string bytes;
    append_utf8(ranges[0].first, bytes);
    uint32_t packed = 0;
    for (size_t i = 0; i < bytes.size(); ++i)
      packed |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    add({.op = Op::Char, .n = static_cast<uint8_t>(bytes.size()), .a = packed});
  }

  void emit_anchor(RegexAnchor anchor) {
    const bool asks_for_words =
        anchor == RegexAnchor::WordBoundary || anchor == RegexAnchor::NoWordBoundary;
    if (asks_for_words && program_.word.ranges().empty()) program_.word = regex_word_set();
    add({.op = Op::Anchor, .a = static_cast<uint32_t>(anchor)});
  }

  void emit_alternate(const RegexNode& node) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i + 1 < node.children.size(); ++i) {
      const uint32_t split = add({.op = Op::Split, .a = here() + 1});
      emit(node.children[i]);
      jumps.push_back(add({Op::Jump}));
      at(split).b = here();
    }
    emit(node.children.back());
    for (const uint32_t jump : jumps) at(jump).a = here();
  }

  void emit_atomic(const RegexNode& child) {
    if (child.kind == Kind::Repeat && child.children[0].kind == Kind::Set && !child.lazy)
      return emit_repeat(child, true);
    add({Op::Mark});
    emit(child);
    add({Op::CutAtomic});
  }

  void emit_look(const RegexNode& node) {
    const uint32_t mark = add({Op::Mark});
    const RegexNode& child = node.children[0];
    if (node.behind)
      emit_behind(child);
    else
      emit(child);
    add({node.negated ? Op::CutNegated : Op::CutLook});
    if (node.negated) at(mark).a = here();
  }

  // Goes back by each length that it may have, and has to end where it began.
  void emit_behind(const RegexNode& child) {
    MINFER_REQUIRE(Input, child.min_chars < (1 << 20), "a look behind that is too long");
    add({.op = Op::Back, .min = static_cast<uint32_t>(child.min_chars)});
    if (child.max_chars == child.min_chars) return emit(child);
    const uint32_t split = add({.op = Op::Split, .a = here() + 1});
    emit(child);
    add({Op::AtMark});
    const uint32_t done = add({Op::Jump});
    at(split).b = here();
    add({.op = Op::Back, .min = 1});
    add({.op = Op::Jump, .a = split});
    at(done).a = here();
  }

  void emit_repeat(const RegexNode& node, bool keeps) {
    const RegexNode& child = node.children[0];
    const bool bounded = node.max != RegexNode::kUnbounded;
    if (child.kind == Kind::Set) {
      add({.op = keeps       ? Op::OwnSet
                 : node.lazy ? Op::LazySet
                             : Op::RepeatSet,
           .a = child.set,
           .min = static_cast<uint32_t>(node.min),
           .max = bounded ? static_cast<uint32_t>(node.max) : RegexInstruction::kNoLimit});
      return;
    }
    // Oniguruma leaves some of these loops at the first time that takes nothing.
    MINFER_REQUIRE(Input, child.min_chars > 0 || (node.min < 2 && (!bounded || node.max < 2)),
                   "an interval of what may take no character is not supported");
    for (int64_t i = 0; i < node.min; ++i) emit(child);
    std::vector<uint32_t> splits;
    const auto add_split = [&] { splits.push_back(add({Op::Split})); };
    if (bounded) {
      for (int64_t i = node.min; i < node.max; ++i) {
        add_split();
        emit(child);
      }
    } else {
      emit_loop(child, add_split);
    }
    for (const uint32_t split : splits) {
      at(split).a = node.lazy ? here() : split + 1;
      at(split).b = node.lazy ? split + 1 : here();
    }
  }

  template <typename AddSplit>
  void emit_loop(const RegexNode& child, const AddSplit& add_split) {
    const uint32_t begin = here();
    const bool may_be_empty = child.min_chars == 0;
    const uint32_t own_register = program_.n_registers;
    add_split();
    if (may_be_empty) {
      ++program_.n_registers;
      add({.op = Op::LoopBegin, .a = own_register});
    }
    emit(child);
    const uint32_t check = may_be_empty ? add({.op = Op::LoopCheck, .a = own_register}) : 0;
    add({.op = Op::Jump, .a = begin});
    if (may_be_empty) at(check).b = here();
  }

  ParsedRegex& parsed_;
  RegexProgram program_;
  size_t work_ = 0;
};

}  // namespace

RegexProgram compile_regex(ParsedRegex parsed) { return Compiler(parsed).run(); }

}  // namespace minfer
