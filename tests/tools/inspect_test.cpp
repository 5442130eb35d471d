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
  EXPECT_EQ(object["types"]["int4 g32"]["kept_as"], "4-bit codes, groups of 32, f16 scales");
  EXPECT_EQ(object["types"]["int4 g32"]["card_kept_as"], "4-bit codes, groups of 32, f16 scales");
  // Columns of a scale are padded to 256: two groups become eight.
  EXPECT_EQ(object["types"]["int4 g32"]["card_bytes"], 22528 / 2 + 22528 / 64 * 8 * 2);
  EXPECT_EQ(object["types"]["F16"]["kept_as"], nullptr);
  EXPECT_EQ(object["types"]["F16"]["card_kept_as"], "f16");
  EXPECT_EQ(object["types"]["F16"]["card_bytes"], object["types"]["F16"]["bytes"]);
  EXPECT_EQ(object["memory"]["card_weight_bytes"],
            object["types"]["int4 g32"]["card_bytes"].get<int64_t>() +
                object["types"]["F16"]["bytes"].get<int64_t>());
  const std::string text = minfer({"inspect", copy_.path()}).out;
  EXPECT_NE(text.find(" kB, kept as 4-bit codes, groups of 32, f16 scales\n"), text.npos) << text;
}

// Heads, elements of the feed-forward network and rows of the output layer are halved; the
// embedding is on both cards.
TEST_F(MinferProcess, InspectSaysWhatEachCardNeeds) {
  const std::string path = (fixtures_dir() / "models/llama-mha-f32").string();
  const auto memory = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"inspect", path, "--json", "--ctx", "64"};
    args.insert(args.end(), more.begin(), more.end());
    const ProcessResult result = minfer(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["memory"];
  };
  const json one = memory({}), two = memory({"--tp", "2"});
  EXPECT_TRUE(one["ranks"].empty());
  ASSERT_EQ(two["ranks"].size(), 2);
  const int64_t whole = one["card_weight_bytes"];
  for (const json& rank : two["ranks"]) {
    EXPECT_EQ(rank["card_kv_bytes"].get<int64_t>() * 2, one["card_kv_bytes"]);
    EXPECT_LT(rank["card_weight_bytes"], whole);
    EXPECT_GT(rank["card_weight_bytes"].get<int64_t>() * 2, whole);
  }
  expect_failure(minfer({"inspect", path, "--tp", "64"}), 2, "can be cut for 1 to");
}

TEST_F(MinferProcess, InspectSaysHowAModelRotatesAndWhereItHasWindows) {
  const auto inspected = [&](const char* name) {
    const std::string path = (fixtures_dir() / "models" / name).string();
    const ProcessResult result = minfer({"inspect", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(result.out, json::parse(minfer({"inspect", path, "--json"}).out)["config"]);
  };
  const auto [yarn_text, yarn] = inspected("qwen2-yarn-f16");
  EXPECT_NE(yarn_text.find("scaling yarn by 4 of 13 tokens, cosines and sines times 1.139\n"),
            std::string::npos)
      << yarn_text;
  EXPECT_EQ(yarn["rope_scaling"], "yarn");
  EXPECT_EQ(yarn["trained_seq_len"], 52);
  const auto [phi_text, phi] = inspected("phi3-longrope-f16");
  EXPECT_NE(phi_text.find("longrope, long in sessions of more than 13 tokens"), std::string::npos)
      << phi_text;
  EXPECT_NE(phi_text.find(", 12 of 16 elements rotate\n"), std::string::npos) << phi_text;
  EXPECT_EQ(phi["rotary_dim"], 12);
  const auto [smol_text, smol] = inspected("smollm3-windows-bf16");
  EXPECT_NE(smol_text.find("no rotation    in layers 0, 2\n"), std::string::npos) << smol_text;
  EXPECT_NE(smol_text.find("window         5 tokens in layers 0, 2\n"), std::string::npos)
      << smol_text;
  EXPECT_EQ(smol["layers_without_rope"], json::array({0, 2}));
  const auto [oss_text, oss] = inspected("gpt-oss-mxfp4");
  EXPECT_NE(oss_text.find("sinks          in all layers\n"), std::string::npos) << oss_text;
  EXPECT_NE(oss_text.find("experts        2 of 4, ffn dim 64, gates clamped to 7 in all layers\n"),
            std::string::npos)
      << oss_text;
  EXPECT_EQ(oss["windows"], json::array({5, 0}));
  EXPECT_EQ(smol["windows"], json::array({5, 0, 5}));
  EXPECT_NE(inspected("phi3-window-bf16").first.find("7 tokens in all layers\n"),
            std::string::npos);
}

// With a window in every layer, the cache has room for the window and one prefill pass.
TEST_F(InspectQuantized, TheCacheOfAWindowDoesNotGrowWithTheContext) {
  json config = json::parse(files_["config.json"]);
  config.update(
      {{"model_type", "mistral"}, {"sliding_window", 256}, {"max_position_embeddings", 32768}});
  copy_.write("config.json", config.dump());
  const auto memory = [&](const char* ctx) {
    const ProcessResult result = minfer({"inspect", copy_.path(), "--json", "--ctx", ctx});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["memory"];
  };
  constexpr int64_t kBytesOfPosition = 16 * 2 * 2;  // one head of 16: keys and values in F16
  const json some = memory("8192"), more = memory("32768"), few = memory("200");
  // Pages of 128 positions: the window, a pass of 512 rows on the CPU or 4096 on a card, one more.
  EXPECT_EQ(some["kv_bytes"], (256 + 512 + 128) * kBytesOfPosition);
  EXPECT_EQ(some["card_kv_bytes"], (256 + 4096 + 128) * kBytesOfPosition);
  EXPECT_EQ(more["kv_bytes"], some["kv_bytes"]);
  EXPECT_EQ(more["card_kv_bytes"], some["card_kv_bytes"]);
  EXPECT_EQ(few["kv_bytes"], 200 * kBytesOfPosition);
  EXPECT_EQ(few["card_kv_bytes"], 200 * kBytesOfPosition);
}

// Each type of GGUF's blocks, in a file of a model that is not supported, which has its types too.
TEST_F(MinferProcess, InspectSaysHowACardKeepsEachType) {
  constexpr int64_t kRows = 16, kColumns = 256;
  const struct {
    uint32_t type;
    const char *name, *kept;
    int64_t block_bytes, block_elements, card_bytes;
  } cases[] = {
      {0, "F32", "bf16", 4, 1, 8192},
      {30, "BF16", "bf16", 2, 1, 2 * 8192},
      {8, "Q8_0", "8-bit codes, groups of 32, f16 scales", 34, 32, 4096 + 128 * 2},
      {2, "Q4_0", "4-bit codes, groups of 32, f16 scales", 18, 32, 2048 + 128 * 2},
      {3, "Q4_1", "4-bit codes, groups of 32, f16 scales, f32 mins", 20, 32, 2048 + 128 * 6},
      {6, "Q5_0", "8-bit codes, groups of 32, f16 scales", 22, 32, 4096 + 128 * 2},
      {7, "Q5_1", "8-bit codes, groups of 32, f16 scales, f32 mins", 24, 32, 4096 + 128 * 6},
      // A factor of F16 for each chunk of 256 codes, and a byte a scale.
      {12, "Q4_K", "4-bit codes, groups of 32, int8 x f16 scales and mins", 144, 256,
       2 * (2048 + 16 * 2 * (2 + 8))},
      {13, "Q5_K", "5-bit codes, groups of 32, int8 x f16 scales and mins", 176, 256,
       2560 + 16 * 2 * (2 + 8)},
      {14, "Q6_K", "6-bit codes, groups of 16, int8 x f16 scales", 210, 256, 3072 + 16 * (2 + 16)},
  };
  GgufBuilder gguf;
  gguf.pair("general.architecture", kText, gguf_text("another"));
  for (const auto& c : cases) {
    const bool is_bf16 = c.type == 30;  // more of it than of other floats: what a card computes in
    const int64_t n = kRows * kColumns * (is_bf16 ? 2 : 1);
    gguf.tensor({c.name,
                 {uint64_t{kColumns}, uint64_t(n / kColumns)},
                 c.type,
                 std::string(size_t(n / c.block_elements * c.block_bytes), '\0')});
  }
  gguf.tensor({"two experts", {uint64_t{kColumns}, 8, 2}, 12, std::string(16 * 144, '\0')});
  const std::string path = dir_.write("types.gguf", gguf.build());
  const ProcessResult result = minfer({"inspect", path, "--json"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const json types = json::parse(result.out)["types"];
  const std::string text = minfer({"inspect", path}).out;
  for (const auto& c : cases) {
    EXPECT_EQ(types[c.name]["card_kept_as"], c.kept) << c.name;
    EXPECT_EQ(types[c.name]["card_bytes"], c.card_bytes) << c.name;
    EXPECT_NE(text.find(std::string("    on a card as ") + c.kept + ", "), text.npos) << text;
  }
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

// A used tensor of a type that minfer does not have ends neither the listing nor tokenize.
TEST_F(InspectQuantized, ATensorOfAnotherTypeIsReported) {
  for (const auto& [name, number, reason] :
       std::vector<std::tuple<std::string, uint32_t, std::string>>{
           {"blk.1.ffn_up.weight", 26, "has type I32"},
           {"token_embd.weight", 4000, "has type number 4000"},
           {"output_norm.weight", 25, "has type I16"}}) {
    std::string bytes = tiny_gguf();
    // The record's type follows its name and dims.
    const size_t at = bytes.find(gguf_text(name));
    ASSERT_NE(at, std::string::npos);
    const size_t dims_at = at + 8 + name.size();
    const auto n_dims = static_cast<unsigned char>(bytes[dims_at]);
    bytes.replace(dims_at + 4 + 8 * size_t{n_dims}, 4, bytes_of_values(number));
    const std::string file = dir_.write("other.gguf", bytes);
    const ProcessResult result = minfer({"inspect", file, "--json"});
    EXPECT_EQ(result.exit_code, 3);
    const json object = json::parse(result.out);
    EXPECT_EQ(object["supported"], false);
    EXPECT_NE(object["unsupported"].get<std::string>().find(name), std::string::npos);
    EXPECT_EQ(minfer({"tokenize", "-m", file, "--ids", "ab"}).exit_code, 0);
    const ProcessResult generated = minfer({"generate", "-m", file, "-p", "a", "-n", "1"});
    EXPECT_EQ(generated.exit_code, 3);
    EXPECT_NE(generated.err.find(reason), std::string::npos) << generated.err;
  }
}

}  // namespace
}  // namespace minfer::test
