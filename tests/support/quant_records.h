#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "loaders/byte_reader.h"
#include "tests/support/test_data.h"

namespace minfer::test {

inline DType dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(DType::U8); ++i) {
    if (info(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  }
  ADD_FAILURE() << "no dtype " << name;
  return DType::F32;
}

// A record of make_quant_fixtures.py: blocks, and the values that they represent.
struct QuantRecord {
  DType dtype;
  std::string blocks;
  std::vector<float> values;
};

inline std::vector<QuantRecord> read_quant_records(const char* name) {
  const std::string fixture = read_file(fixtures_dir() / name);
  ByteReader reader(fixture);
  std::vector<QuantRecord> records;
  while (reader.left() > 0) {
    QuantRecord record;
    record.dtype = dtype_named(reader.text(8).c_str());  // up to the padding
    record.values.resize(reader.read<uint64_t>());
    record.blocks = reader.text(reader.read<uint64_t>());
    const std::string values = reader.text(record.values.size() * sizeof(float));
    std::memcpy(record.values.data(), values.data(), values.size());
    EXPECT_EQ(bytes_of(record.dtype, std::ssize(record.values)), std::ssize(record.blocks));
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace minfer::test
