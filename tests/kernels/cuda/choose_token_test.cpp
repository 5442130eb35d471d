#include "kernels/cuda/sampling/choose_token.h"

#include <algorithm>
#include <random>

#include "engine/sampler.h"
#include "tests/support/cuda_tensors.h"

namespace minfer::test {
namespace {

constexpr uint32_t kEpochs = 3;

// The token that the kernel chooses after position `pos`. Also checks what else the kernel writes.
TokenId chosen_on_card(const DeviceTensor& logits, const DecodeSampling& sampling, int pos) {
  const auto choice = cuda::token_choice(sampling, logits.view().n_elements(), pos);
  if (!choice) {
    ADD_FAILURE() << "refused";
    return -1;
  }
  const auto bytes_of = [](auto& value) {
    return Tensor{&value, DType::U8, {int64_t{sizeof value}}};
  };
  auto its_choice = *choice;
  cuda::StepInput input{{77}, pos, 5};
  const DeviceTensor choice_dev = to_device(bytes_of(its_choice));
  const DeviceTensor input_dev = to_device(bytes_of(input));
  cuda::PinnedArray<TokenId> chosen(2);
  chosen.data()[0] = chosen.data()[1] = -77;
  cuda::choose_token(nullptr, logits.view().as<const float>(),
                     static_cast<const cuda::TokenChoice*>(choice_dev.view().data),
                     static_cast<cuda::StepInput*>(input_dev.view().data), kEpochs, chosen.data(),
                     /*with_pdl=*/pos % 2 == 1);
  std::memcpy(&input, to_host(input_dev).view().data, sizeof input);
  const TokenId id = chosen.data()[pos % 2];
  EXPECT_EQ(chosen.data()[(pos + 1) % 2], -77);
  EXPECT_EQ(input.tokens[0], std::max(id, 0));
  EXPECT_EQ(input.pos, pos + 1);
  EXPECT_EQ(input.epoch, 5 + kEpochs);
  return id;
}

// Kinds of logits. The last ones have more candidates than the kernel has room for, or all of them
// in few threads.
struct Kind {
  const char* name;
  float (*logit)(int64_t i, float normal);  // of token i, from a normal number
};
constexpr Kind kKinds[] = {
    {"random", [](int64_t, float x) { return 2.5f * x; }},
    {"wide", [](int64_t, float x) { return 30 * x; }},
    {"with ties", [](int64_t, float x) { return std::round(2 * x); }},
    {"zeros of both signs", [](int64_t, float x) { return std::copysign(0.0f, x); }},
    {"all equal", [](int64_t, float) { return 1.5f; }},
    {"falling", [](int64_t i, float) { return float(i) * -1e-3f; }},
    {"rising", [](int64_t i, float) { return float(i) * 1e-3f; }},
    {"in few threads",
     [](int64_t i, float x) { return i % 4096 < 16 ? std::round(8 * x) : x - 60; }},
};

HostTensor logits_of(const Kind& kind, int64_t n, uint64_t seed) {
  HostTensor logits = random_normal(seed, {n});
  for (int64_t i = 0; i < n; ++i) {
    float& x = logits.as<float>()[i];
    x = kind.logit(i, x);
  }
  return logits;
}

// A draw has 53 bits, so the chance is 1e-12 that the last bit of a double exponential decides it.
TEST(CudaChooseToken, AgreesWithTheSampler) {
  MINFER_NEEDS_CUDA();
  std::mt19937_64 random(1);
  const auto one_of = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  for (const int64_t n : {1, 2, 31, 1000, 1025, 32000, 152064}) {
    for (const Kind& kind : kKinds) {
      const HostTensor logits = logits_of(kind, n, random());
      const std::span<const float> on_host(logits.as<const float>(), size_t(n));
      const DeviceTensor on_card = to_device(logits);
      std::vector<TokenId> ranked(static_cast<size_t>(n));
      for (size_t i = 0; i < ranked.size(); ++i) ranked[i] = TokenId(i);
      std::ranges::stable_sort(ranked, std::greater(),
                               [&](TokenId i) { return on_host[size_t(i)]; });
      for (const int64_t top_k : {0, 1, 2, 40, 64, 65, 1000, 1024}) {  // 0: greedy
        for (int repetition = 0; repetition < 4; ++repetition) {
          SamplerOptions options;
          options.temperature = top_k == 0 ? 0 : one_of(0.1f, 0.8f, 1.0f, 2.0f);
          options.top_k = top_k;
          options.top_p = repetition == 0 ? 1 : one_of(0.0f, 0.5f, 0.95f, 1.0f);
          options.min_p = repetition == 0 ? 0 : one_of(0.0f, 0.05f, 0.5f, 1.0f);
          options.seed = random();
          DecodeSampling sampling{.temperature = options.temperature,
                                  .top_k = options.top_k,
                                  .top_p = options.top_p,
                                  .min_p = options.min_p,
                                  .seed = options.seed,
                                  .first_draw = random() % 5000,
                                  .n_tokens = n,
                                  .banned = {}};
          const int64_t n_banned = std::min<int64_t>(one_of(0, 1, 3, 16), n - 1);
          for (int64_t b = 0; b < n_banned; ++b) {
            const size_t rank = b % 2 == 0 ? size_t(b) : random() % size_t(n);
            sampling.banned.push_back(ranked[rank]);
            options.logit_bias.emplace_back(ranked[rank], -INFINITY);
          }
          Sampler sampler(options, n);
          ASSERT_EQ(chosen_on_card(on_card, sampling, int(random() % 4096)),
                    sampler.sample(on_host, {}, sampling.first_draw))
              << kind.name << ", n " << n << ", top_k " << top_k << ", top_p " << options.top_p
              << ", min_p " << options.min_p << ", temperature " << options.temperature
              << ", banned " << n_banned;
        }
      }
    }
  }
}

// Rows at once, with a choice for each: as alone, whatever stands beside it; behind a row that is
// not finite there is no token.
TEST(CudaChooseToken, ChoosesBehindEachRow) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kBad = 4;
  for (const int64_t n : {4, 1000, 32000, 152064}) {
    for (const int64_t n_rows : {1, 2, 8}) {
      HostTensor logits(DType::F32, {n_rows, n});
      for (int64_t row = 0; row < n_rows; ++row) {
        const HostTensor its = logits_of(kKinds[row], n, uint64_t(row));
        std::memcpy(logits.view().rows(row, 1).data, its.view().data, size_t(its.view().n_bytes()));
      }
      if (n_rows > kBad) logits.as<float>()[kBad * n + n / 2] = std::nanf("");
      const DeviceTensor on_card = to_device(logits);
      std::vector<DecodeSampling> samplings;
      std::vector<cuda::TokenChoice> choices;
      for (int64_t row = 0; row < n_rows; ++row) {
        samplings.push_back({.temperature = row % 3 == 0 ? 0.0f : 0.5f * float(row),
                             .top_k = 40 + row,
                             .top_p = 0.9f,
                             .seed = 5,
                             .first_draw = uint64_t(7 * row),
                             .n_tokens = n - 1,
                             .banned = {TokenId(row % 3)}});
        choices.push_back(cuda::token_choice(samplings.back(), n, 0).value());
      }
      cuda::ChoicesOnCard choices_on_card(n_rows);
      choices_on_card.set(nullptr, choices);
      cuda::PinnedArray<TokenId> chosen(size_t(n_rows) + 1);
      std::fill_n(chosen.data(), n_rows + 1, -77);
      cuda::choose_tokens(nullptr, on_card, choices_on_card.data(), chosen.data(),
                          /*with_pdl=*/n_rows % 2 == 1);
      MINFER_CUDA_CHECK(cudaDeviceSynchronize());
      for (int64_t row = 0; row < n_rows; ++row) {
        const DeviceTensor alone = to_device(logits.view().rows(row, 1).reshaped({n}));
        EXPECT_EQ(chosen.data()[row], chosen_on_card(alone, samplings[size_t(row)], 41))
            << "row " << row << " of " << n_rows << " of " << n;
        EXPECT_EQ(chosen.data()[row] < 0, row == kBad);
      }
      EXPECT_EQ(chosen.data()[n_rows], -77);
    }
  }
}

TEST(CudaChooseToken, SaysWhereALogitIsNotFinite) {
  MINFER_NEEDS_CUDA();
  for (const int64_t n : {1, 31, 32000, 152064}) {
    for (const float bad : {std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        HostTensor logits = random_normal(1, {n});
        logits.as<float>()[at] = bad;
        const DeviceTensor on_card = to_device(logits);
        DecodeSampling sampling{.n_tokens = n, .banned = {}};
        EXPECT_EQ(chosen_on_card(on_card, sampling, 6), -1) << bad << " at " << at << " of " << n;
        sampling.temperature = 1;
        sampling.top_k = 40;
        EXPECT_EQ(chosen_on_card(on_card, sampling, 7), -1) << bad << " at " << at << " of " << n;
        if (n == 1) continue;
        sampling.banned = {TokenId(at)};  // it is reported all the same
        EXPECT_EQ(chosen_on_card(on_card, sampling, 8), -1) << bad << " at " << at << " of " << n;
      }
    }
  }
}

// Values after the last token are padding, and may be anything.
TEST(CudaChooseToken, LeavesOutThePadding) {
  MINFER_NEEDS_CUDA();
  for (const int64_t n : {5, 1000, 31999}) {
    HostTensor logits = random_normal(n, {n + 7});
    for (int64_t i = n; i < n + 7; ++i) logits.as<float>()[i] = i % 2 == 0 ? 100 : std::nanf("");
    const float* const values = logits.as<const float>();
    EXPECT_EQ(chosen_on_card(to_device(logits), {.n_tokens = n, .banned = {}}, 0),
              std::max_element(values, values + n) - values);
  }
}

TEST(CudaChooseToken, RefusesWhatItHasNoRoomFor) {
  const auto accepts = [](const DecodeSampling& sampling) {
    return cuda::token_choice(sampling, 32000, 0).has_value();
  };
  const auto of = [](float temperature, int64_t top_k, int64_t n_tokens, size_t n_banned) {
    return DecodeSampling{.temperature = temperature,
                          .top_k = top_k,
                          .n_tokens = n_tokens,
                          .banned = std::vector<TokenId>(n_banned, 1)};
  };
  EXPECT_TRUE(accepts(of(0, 0, 32000, 16)));
  EXPECT_TRUE(accepts(of(1, 1024, 32000, 0)));
  EXPECT_TRUE(accepts(of(1, 0, 1024, 0)));
  EXPECT_TRUE(accepts(of(1, 5000, 1000, 0)));
  EXPECT_FALSE(accepts(of(1, 0, 1025, 0)));
  EXPECT_FALSE(accepts(of(1, 1025, 32000, 0)));
  EXPECT_FALSE(accepts(of(0, 0, 32001, 0)));
  EXPECT_FALSE(accepts(of(0, 0, 0, 0)));
  EXPECT_FALSE(accepts(of(0, 0, 32000, 17)));
  EXPECT_FALSE(accepts(of(0, 0, 2, 2)));
}

// An epoch has 16 bits; no step has epoch 0.
TEST(CudaChooseToken, EpochsStayBelow65536) {
  for (const uint32_t n : {1u, 2u, 22u, 32u, 4096u, 30000u, 40000u}) {
    uint32_t epoch = 1;
    for (int step = 0; step < 100000; ++step) {
      ASSERT_GE(epoch, 1u);
      ASSERT_LE(epoch + n - 1, 65535u) << n << " a step";
      const uint32_t next = cuda::epoch_after(epoch, n);
      ASSERT_TRUE(next == epoch + n || (next == 1 && epoch + 2 * n > 65536));
      epoch = next;
    }
  }
  EXPECT_EQ(cuda::epoch_after(1, 0), 1u);
}

}  // namespace
}  // namespace minfer::test
