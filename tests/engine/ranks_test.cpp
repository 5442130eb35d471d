#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "engine/generate.h"
#include "engine/session.h"
#include "tests/support/cpu_ranks.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"

namespace minfer::test {
namespace {

// Every fixture on as many ranks as it can be cut for.
class RankLogits : public testing::TestWithParam<std::string> {};

TEST_P(RankLogits, AgreeWithTransformers) {
  const auto [path, ids, reference] = fixture_model(GetParam());
  int n_loaded = 0;
  for (const int n_ranks : {2, 3, 4}) {
    SCOPED_TRACE(n_ranks);
    const auto backend = cpu_ranks(n_ranks);
    Model model;
    try {
      model = load_model(path, *backend);
    } catch (const Error& error) {
      // By the number of heads, or of groups in a row, or because norms are over all heads.
      EXPECT_EQ(error.kind(), ErrorKind::Usage) << error.what();
      const std::string text = error.what();
      EXPECT_TRUE(text.find("can be cut for 1") != std::string::npos ||
                  text.find("norms over all heads") != std::string::npos)
          << text;
      continue;
    }
    ++n_loaded;
    Session session(model, *backend, {.kv_dtype = DType::F32});
    const std::vector<float> all = [&] {
      const std::span<const float> logits = session.eval_all(ids);
      return std::vector<float>(logits.begin(), logits.end());
    }();
    EXPECT_LE(max_difference(std::span<const float>(all), reference) / rms(reference), 1e-4);

    // Token by token, each row has the same bits.
    session.truncate(0);
    const auto width = size_t(model.spec.vocab_size);
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::span<const float> row = session.eval(std::span(ids).subspan(i, 1));
      ASSERT_TRUE(std::ranges::equal(row, std::span(all).subspan(i * width, width))) << i;
    }
  }
  RecordProperty("n_loaded", n_loaded);
}

INSTANTIATE_TEST_SUITE_P(Models, RankLogits, testing::ValuesIn(fixture_models()),
                         fixture_test_name);

// A source that counts the bytes that are read of each tensor.
class CountingSource final : public TensorSource {
 public:
  explicit CountingSource(const std::string& path) : real_(open_source(path)) {
    this->path = real_->path;
    format = real_->format;
    key_style = real_->key_style;
    metadata = real_->metadata;
    for (const TensorEntry& entry : real_->tensors) add_tensor(entry);
  }
  void read_into(HostTensor& to, const TensorEntry& entry) const override {
    real_->read_into(to, of_real(entry));
    count(entry, to.view());
  }
  HostTensor read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const override {
    HostTensor rows = real_->read_rows(of_real(entry), begin, n);
    count(entry, rows.view());
    return rows;
  }
  void check_unchanged() const override {}

  uint64_t bytes_read(const std::string& name) const { return read_.at(name); }

 private:
  const TensorEntry& of_real(const TensorEntry& entry) const { return *real_->find(entry.name); }
  void count(const TensorEntry& entry, const Tensor& x) const {
    const std::lock_guard lock(mutex_);
    read_[entry.name] += static_cast<uint64_t>(x.n_bytes());
  }

  std::unique_ptr<TensorSource> real_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, uint64_t> read_;
};

// All ranks together read a tensor that is cut by rows once. One that is cut by columns lies row by
// row in the file, and is read by each.
TEST(Ranks, ReadTheirRowsAlone) {
  const CountingSource source((fixtures_dir() / "../../models/demo").string());
  const auto backend = cpu_ranks(2);
  const Model model = load_model(source, *backend);
  for (const TensorEntry& entry : source.tensors) {
    SCOPED_TRACE(entry.name);
    const auto has = [&](const char* part) { return entry.name.find(part) != std::string::npos; };
    const bool by_rows =
        has("q_proj") || has("k_proj") || has("v_proj") || has("gate_proj") || has("up_proj");
    // The tied embedding as a table on each, and its rows of the output layer.
    const uint64_t times = by_rows ? 1 : has("embed_tokens") ? 3 : 2;
    EXPECT_EQ(source.bytes_read(entry.name), times * entry.file_bytes);
  }
}

// The demonstration model: as many ranks as it has heads, and the text of one.
TEST(Ranks, WriteTheSameText) {
  const std::filesystem::path path = fixtures_dir() / "../../models/demo";
  std::vector<TokenId> text;
  for (const int n_ranks : {1, 2, 3, 4}) {
    const auto backend = cpu_ranks(n_ranks);
    const Model model = load_model(path.string(), *backend);
    Session session(model, *backend, {.max_seq_len = 256});
    const std::vector<TokenId> prompt =
        model.tokenizer->encode("The old man went to the sea", {.add_bos = true});
    GenerateOptions options;
    options.n_predict = 60;
    const GenerateResult result = generate(session, prompt, options, nullptr);
    if (n_ranks == 1) text = result.tokens;
    EXPECT_EQ(result.tokens, text) << n_ranks;
  }
}

// Two sequences in one pass, and a chunk that is no longer than a rank's.
TEST(Ranks, ManyTextsInOnePass) {
  const auto [path, ids, reference] = fixture_model("models/llama-head64-f16");
  const auto backend = cpu_ranks(2);
  const Model model = load_model(path, *backend);
  Session session(model, *backend,
                  {.kv_dtype = DType::F32, .several_sequences = true, .all_logits = true});
  const std::vector<Session::Text> texts = {{ids, 0}, {std::span(ids).first(3), 1}};
  const std::span<const float> both = session.eval_texts(texts);
  const std::vector<float> held(both.begin(), both.end());
  const auto width = size_t(model.spec.vocab_size);
  ASSERT_EQ(held.size(), (ids.size() + 2) * width);
  EXPECT_LE(max_difference(std::span<const float>(held).first(ids.size() * width), reference) /
                rms(reference),
            1e-4);
  EXPECT_TRUE(std::ranges::equal(std::span(held).subspan(ids.size() * width),
                                 std::span(held).subspan(width, 2 * width)));
}

}  // namespace
}  // namespace minfer::test
