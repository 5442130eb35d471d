#pragma once

#include "tests/fuzz/fuzz_target.h"

namespace minfer::test {

// A template written by Jinja's grammar, broken in one of four cases.
std::string random_template(Random& random);

}  // namespace minfer::test
