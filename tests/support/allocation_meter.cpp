#include "tests/support/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace minfer::test {
namespace {

std::atomic<size_t> held = 0, peak = 0;

void* counted(void* memory) {
  if (memory == nullptr) return nullptr;
  const size_t now = held += malloc_usable_size(memory);
  size_t highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
  return memory;
}

void* take(size_t n) noexcept { return counted(std::malloc(std::max<size_t>(n, 1))); }

void* take(size_t n, std::align_val_t alignment) noexcept {
  const auto a = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(a, (std::max<size_t>(n, 1) + a - 1) / a * a));
}

void give(void* memory) noexcept {
  if (memory == nullptr) return;
  held -= malloc_usable_size(memory);
  std::free(memory);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

size_t held_bytes() { return held; }
size_t peak_bytes() { return peak; }
void reset_peak() { peak = held.load(); }

}  // namespace minfer::test

using minfer::test::give;
using minfer::test::or_throw;
using minfer::test::take;

void* operator new(size_t n) { return or_throw(take(n)); }
void* operator new[](size_t n) { return or_throw(take(n)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return take(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return take(n); }
void* operator new(size_t n, std::align_val_t a) { return or_throw(take(n, a)); }
void* operator new[](size_t n, std::align_val_t a) { return or_throw(take(n, a)); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(n, a);
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(n, a);
}
void operator delete(void* p) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete(void* p, size_t) noexcept { give(p); }
void operator delete[](void* p, size_t) noexcept { give(p); }
void operator delete(void* p, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { give(p); }
