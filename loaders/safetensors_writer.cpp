#include "loaders/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/math.h"
#include "loaders/file.h"

namespace minfer {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr int64_t kDataAlignment = 64;
constexpr uint64_t kPieceBytes = 4 << 20;

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Record>& records,
                                     std::map<std::string, std::string> metadata)
    : file_(path), metadata_(std::move(metadata)) {
  uint64_t end = 0;
  for (const Record& record : records) {
    const bool is_new = index_.emplace(record.name, tensors_.size()).second;
    MINFER_CHECK(is_new, "tensor ", record.name, " is there twice");
    tensors_.push_back({record, end, 0, Xxh3()});
    end = checked_add(end, record.n_bytes);
  }
  // Every checksum has the same length, so that this header is as long as the final one.
  data_begin_ = kLengthBytes + header().size();
}

void SafetensorsWriter::append(const std::string& name, const void* bytes, uint64_t n) {
  const auto found = index_.find(name);
  MINFER_CHECK(found != index_.end(), "tensor ", name, " is not of this file");
  Open& tensor = tensors_[found->second];
  MINFER_CHECK(n <= tensor.record.n_bytes - tensor.written, "tensor ", name, ": ", n,
               " bytes too many");
  file_.write(data_begin_ + tensor.begin + tensor.written, bytes, n);
  tensor.checksum.update(bytes, n);
  tensor.written += n;
}

void SafetensorsWriter::finish() {
  for (const Open& tensor : tensors_) {
    MINFER_CHECK(tensor.written == tensor.record.n_bytes, "tensor ", tensor.record.name, ": ",
                 tensor.written, " bytes of ", tensor.record.n_bytes);
  }
  const std::string text = header();
  const uint64_t length = text.size();
  file_.write(0, &length, sizeof length);  // little-endian, as every machine that minfer runs on
  file_.write(kLengthBytes, text.data(), text.size());
  file_.finish();
}

std::string SafetensorsWriter::check(const std::function<void(int64_t, int64_t)>& progress) const {
  const File file(file_.path());
  const std::string text = header();
  Sha256 whole;
  std::vector<char> piece(kPieceBytes);
  uint64_t done = 0;
  // The next n bytes of the file through f.
  const auto read_on = [&](uint64_t n, auto&& f) {
    while (n > 0) {
      const uint64_t count = std::min(n, kPieceBytes);
      file.read(done, piece.data(), count);
      whole.update(piece.data(), count);
      f(piece.data(), count);
      done += count;
      n -= count;
      progress(narrow<int64_t>(done), narrow<int64_t>(file.size()));
    }
  };
  std::string start;
  read_on(data_begin_, [&](const char* bytes, uint64_t n) { start.append(bytes, n); });
  const uint64_t length = text.size();
  const std::string_view length_bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bool equal = start == std::string(length_bytes) + text;
  for (const Open& tensor : tensors_) {
    Xxh3 checksum;
    read_on(tensor.record.n_bytes,
            [&](const char* bytes, uint64_t n) { checksum.update(bytes, n); });
    equal = equal && checksum.hex() == tensor.checksum.hex();
  }
  MINFER_REQUIRE(System, equal && done == file.size(), shown_path(file_.path()),
                 ": does not hold what was written");
  return whole.hex();
}

// Padded with spaces so that the data begins at a multiple of 64.
std::string SafetensorsWriter::header() const {
  // A null that becomes an object is destroyed as one where there is no memory for it.
  nlohmann::json root = nlohmann::json::object();
  nlohmann::json& metadata = root["__metadata__"] = metadata_;
  for (const Open& tensor : tensors_) {
    metadata["xxh3." + tensor.record.name] = tensor.checksum.hex();
    root[tensor.record.name] = {
        {"dtype", tensor.record.type},
        {"shape", tensor.record.dims},
        {"data_offsets", {tensor.begin, tensor.begin + tensor.record.n_bytes}}};
  }
  std::string text = root.dump();
  const auto n_bytes = narrow<int64_t>(kLengthBytes + text.size());
  text.resize(text.size() + static_cast<size_t>(align_up(n_bytes, kDataAlignment) - n_bytes), ' ');
  return text;
}

}  // namespace minfer
