#include <filesystem>

#include "loaders/checksum.h"
#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using nlohmann::json;

// `minfer inspect` on a copy of a quantized fixture.
class InspectQuantized : public MinferProcess {
 protected:
  InspectQuantized() {
    for (const char* name : {"config.json", "model.safetensors"}) {
      files_[name] = read_file(fixtures_dir() / "quantized/ct-int4-g32" / name);
      copy_.write(name, files_[name]);
    }
  }
  ProcessResult check() const { return minfer({"inspect", copy_.path(), "--check", "-q"}); }
  void write_sums() const {
    std::string sums;
    for (const auto& [name, bytes] : files_) sums += sha256_hex(bytes) + "  " + name + '\n';
    copy_.write("SHA256SUMS", sums);
  }

  TempDir copy_;
  std::map<std::string, std::string> files_;
};

TEST_F(InspectQuantized, SaysWhatIsPacked) {
  const ProcessResult result = minfer({"inspect", copy_.path(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object["format"], "safetensors, compressed-tensors int4 g32");
  EXPECT_EQ(object["types"]["int4 g32"]["n_tensors"], 7);
  EXPECT_EQ(object["types"]["int4 g32"]["n_params"], 22528);
  EXPECT_EQ(object["types"]["int4 g32"]["bytes"], 22528 / 2 + 22528 / 32 * 2 + 7 * 16);
  EXPECT_NEAR(object["bpw"], 6.44, 0.01);
  EXPECT_EQ(object["types"]["int4 g32"]["kept_as"], "4-bit levels, groups of 32, f16 scales");
  EXPECT_EQ(object["types"]["F16"]["kept_as"], nullptr);
  const std::string text = minfer({"inspect", copy_.path()}).out;
  EXPECT_NE(text.find(" KiB, kept as 4-bit levels, groups of 32, f16 scales\n"), text.npos) << text;
}

TEST_F(InspectQuantized, CheckHoldsFilesAgainstTheirSums) {
  write_sums();
  const ProcessResult sound = check();
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_NE(sound.out.find("2 files agree with SHA256SUMS"), std::string::npos) << sound.out;
  for (const auto& [name, bytes] : files_) {
    for (const size_t bit : {size_t{0}, 4 * bytes.size() + 3, 8 * bytes.size() - 1}) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      copy_.write(name, flipped);
      expect_failure(check(), 3, name + ": SHA-256 is ");
    }
    copy_.write(name, bytes);
  }
}

TEST_F(InspectQuantized, CheckNamesAScaleThatIsNotFinite) {
  std::string bytes = files_["model.safetensors"];
  const size_t header_bytes = 8 + static_cast<unsigned char>(bytes[0]) +
                              256 * static_cast<size_t>(static_cast<unsigned char>(bytes[1]));
  const json header = json::parse(bytes.substr(8, header_bytes - 8));
  const std::string module = "model.layers.0.mlp.up_proj.weight";
  const size_t at = header_bytes + header[module + "_scale"]["data_offsets"][0].get<size_t>();
  for (const char* half : {"\x00\x7e", "\x00\x7c"}) {  // f16: not a number, infinity
    bytes.replace(at, 2, half, 2);
    copy_.write("model.safetensors", bytes);
    expect_failure(check(), 3, "tensor " + module + ": element ");
  }
}

}  // namespace
}  // namespace minfer::test
