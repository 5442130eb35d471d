#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/base/error.h"
#include "loaders/file.h"

namespace minfer {

static_assert(std::endian::native == std::endian::little, "the file formats are little-endian");

// A cursor over the bytes of a file that never passes their end; no other code does arithmetic on
// positions. A read past the end throws Input with the byte where it began.
class ByteReader {
 public:
  // Reads memory that outlives the reader.
  explicit ByteReader(std::string_view bytes) : window_(bytes), end_(bytes.size()) {}
  // Reads a file that outlives the reader, through a window of kWindowBytes.
  explicit ByteReader(const File& file) : file_(&file), end_(file.size()) {}
  ByteReader(const ByteReader&) = delete;  // window_ points into buffer_
  ByteReader& operator=(const ByteReader&) = delete;

  uint64_t position() const { return window_begin_ + used_; }
  uint64_t left() const { return end_ - position(); }

  template <typename T>
  requires std::is_arithmetic_v<T> T read() {
    require(sizeof(T));
    if (window_.size() - used_ < sizeof(T)) slide();
    T value;
    std::memcpy(&value, window_.data() + used_, sizeof value);
    used_ += sizeof value;
    return value;
  }

  std::string text(uint64_t n_bytes) {
    require(n_bytes);  // before the allocation: never more than the file has
    std::string text(n_bytes, '\0');
    const size_t in_window = std::min<size_t>(n_bytes, window_.size() - used_);
    used_ += window_.copy(text.data(), in_window, used_);
    if (in_window < n_bytes) {
      file_->read(position(), text.data() + in_window, n_bytes - in_window);
      window_begin_ = position() + (n_bytes - in_window);
      window_ = {};
      used_ = 0;
    }
    return text;
  }

  void require(uint64_t n_bytes) const {
    MINFER_REQUIRE(Input, n_bytes <= left(), "byte ", position(), ": ", n_bytes,
                   " bytes wanted, the file has ", left(), " more");
  }

 private:
  static constexpr uint64_t kWindowBytes = 256 * 1024;

  void slide() {
    window_begin_ = position();
    used_ = 0;
    buffer_.resize(std::min(kWindowBytes, end_ - window_begin_));
    file_->read(window_begin_, buffer_.data(), buffer_.size());
    window_ = buffer_;
  }

  const File* file_ = nullptr;  // null: window_ has all the bytes
  std::string buffer_;
  std::string_view window_;  // the bytes that are in memory
  uint64_t window_begin_ = 0;
  size_t used_ = 0;  // bytes of the window that have been read
  uint64_t end_ = 0;
};

}  // namespace minfer
