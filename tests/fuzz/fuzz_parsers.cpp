#include "tests/fuzz/parser_targets.h"

namespace minfer::test {

std::vector<FuzzTarget> fuzz_targets() {
  std::vector<FuzzTarget> targets;
  add_loader_targets(targets);
  add_json_targets(targets);
  add_tokenizer_targets(targets);
  add_charsmap_target(targets);
  add_regex_target(targets);
  return targets;
}

}  // namespace minfer::test
