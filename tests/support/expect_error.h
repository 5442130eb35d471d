#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/base/error.h"

namespace minfer::test {

// Runs f, which must throw an Error of this kind, with one line that contains `text`.
template <typename F>
void expect_error(ErrorKind kind, std::string_view text, F&& f) {
  try {
    f();
    ADD_FAILURE() << "no error; expected \"" << text << '"';
  } catch (const Error& e) {
    const std::string_view what = e.what();
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << what;
    EXPECT_NE(what.find(text), what.npos) << "found:    " << what << "\nexpected: " << text;
    EXPECT_EQ(what.find('\n'), what.npos) << what;
  }
}

}  // namespace minfer::test
