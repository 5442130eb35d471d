#pragma once

#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace minfer::test {

// Model files of every format, each with its tensors read.
void add_loader_targets(std::vector<FuzzTarget>& targets);
// JSON, and config.json read as a model's shape.
void add_json_targets(std::vector<FuzzTarget>& targets);
// Tokenizer files; each that loads encodes and decodes a few texts.
void add_tokenizer_targets(std::vector<FuzzTarget>& targets);
void add_charsmap_target(std::vector<FuzzTarget>& targets);
// Patterns, each run over a text.
void add_regex_target(std::vector<FuzzTarget>& targets);

}  // namespace minfer::test
