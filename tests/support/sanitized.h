#pragma once

namespace minfer::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
// How much longer tests may take with sanitizers, which instrument every load and store.
constexpr double kSanitizedSlowdown = kSanitized ? 20 : 1;

}  // namespace minfer::test
