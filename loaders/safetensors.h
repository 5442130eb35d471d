#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "loaders/formats.h"
#include "loaders/safetensors_header.h"

namespace minfer {

// One safetensors file, or the shards of a directory. Readers of quantized checkpoints take the raw
// bytes of what it cannot deliver as a TensorEntry, which is mostly packed integers.
class SafetensorsSource final : public FileTensorSource {
 public:
  struct Stored {
    SafetensorsRecord record;
    Extent extent;
    std::string checksum;  // XXH3 in hexadecimal digits; empty: the file has none for it

    uint64_t n_bytes() const { return record.end - record.begin; }
  };

  SafetensorsSource();
  // Adds the tensors of one file and returns their names.
  std::vector<std::string> add_file(File file);
  // Adds the files that the index of a directory names, and checks them against the index.
  void add_shards(const std::string& directory, const std::string& index_path);

  int64_t check_checksums() const override;

  // The small files of a model that a single file carries, by their own names. Removes their
  // tensors from `unusable`.
  std::map<std::string, std::string> files_inside();

  const std::vector<Stored>& all_stored() const { return stored_; }  // of every type
  const Stored* find_stored(const std::string& name) const;          // null where there is none
  void read_stored(const Stored& stored, void* to) const;            // all its bytes
  // Its bytes [begin, begin + n).
  void read_stored(const Stored& stored, uint64_t begin, uint64_t n, void* to) const;

 private:
  void add_record(const SafetensorsRecord& record, const SafetensorsHeader& header);
  void check_tensors(const std::vector<std::string>& names, const std::string& shard,
                     const std::map<std::string, std::string>& shard_of);
  void warn_of_absent(const std::string& index_path,
                      const std::map<std::string, std::string>& shard_of);
  void warn_of_other_files(const std::string& directory, const std::set<std::string>& shards);

  std::vector<Stored> stored_;
  std::unordered_map<std::string, size_t> stored_index_;
  uint64_t n_file_bytes_ = 0;  // of all files
};

}  // namespace minfer
