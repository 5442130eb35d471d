#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace minfer {

// What went wrong, and at the same time the exit status of the process.
enum class ErrorKind : int {
  Internal = 1,  // a bug in minfer
  Usage = 2,     // command line, option value, prompt past the context
  Input = 3,     // a file that is missing, malformed or unsupported
  System = 4,    // permission, read or write error, disk full
  Memory = 5,    // host or device memory
  Gpu = 6,
  Peer = 7,
  Numeric = 8,  // non-finite numbers
};

// Everything streamed into one string, in the classic locale.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // where memory ends: an error, not a shorter text
  (out << ... << parts);
  return std::move(out).str();
}

// File text made safe for one line: control bytes and broken UTF-8 escaped, cut at `max_bytes`.
std::string shortened(std::string_view text, size_t max_bytes = 80);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  ErrorKind kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

  // The same error with its place in front: "m.gguf: tensor x: shape ...".
  Error in(std::string_view context) const { return {kind_, cat(context, ": ", message_)}; }

 private:
  ErrorKind kind_;
  std::string message_;
};

}  // namespace minfer

// For what a file, an option or the environment can break: MINFER_REQUIRE(Input, n > 0, "n is ",
// n).
#define MINFER_REQUIRE(kind, condition, ...)                                        \
  do {                                                                              \
    if (!(condition)) [[unlikely]]                                                  \
      throw ::minfer::Error(::minfer::ErrorKind::kind, ::minfer::cat(__VA_ARGS__)); \
  } while (false)

// For what only a bug in minfer can break. On in every build.
#define MINFER_CHECK(condition, ...)                                                    \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      throw ::minfer::Error(::minfer::ErrorKind::Internal,                              \
                            ::minfer::cat(__FILE__, ":", __LINE__, ": ", __VA_ARGS__)); \
  } while (false)
