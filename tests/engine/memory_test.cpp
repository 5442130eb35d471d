#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/prctl.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "engine/session.h"
#include "models/memory_needed.h"
#include "models/synthetic.h"
#include "tests/support/sanitized.h"
#include "tests/support/specs.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

// Memory of this process, without what the allocator keeps of memory that was freed. The program's
// own pages, of which more are resident once they have run, are not counted.
int64_t resident_bytes() {
  ::malloc_trim(0);
  std::ifstream in("/proc/self/smaps_rollup");
  std::string word;
  int64_t kib = 0;
  while (in >> word) {
    if (word == "Anonymous:" && in >> kib) break;
  }
  return kib * 1024;
}

void is_what_the_process_takes(const ModelSpec& spec, const std::string& what,
                               const std::string& isa) {
  for (const SyntheticType& type : {SyntheticType(DType::U4, 32), SyntheticType(DType::F32)}) {
    for (const bool scores : {false, true}) {
      const int64_t before = resident_bytes();
      const auto backend = make_cpu_backend({.n_threads = 1, .isa = isa});
      const SessionOptions options = {
          .max_seq_len = 4096, .prefill_chunk = 256, .all_logits = scores};
      const SessionMemory session = session_memory(spec, *backend, options);
      const MemoryNeeded needed = synthetic_memory(spec, type, *backend, session);
      const Model model = make_synthetic_model(spec, type, *backend, 1, session);
      Session run(model, *backend, options);
      std::vector<TokenId> ids(256, 7);
      for (int i = 0; i < 2; ++i) scores ? run.eval_all(ids) : run.eval(ids);
      const double taken = double(resident_bytes() - before);
      const double host = scores ? 256.0 * 30011 * 4 : 0;  // the logits as they are returned
      EXPECT_NEAR(taken - host, double(needed.bytes()), 0.02 * double(needed.bytes()))
          << what << (scores ? "scores, " : "generates, ") << type.dtype;
    }
  }
}

// What is said beforehand is what is taken, as a text is generated and as one is scored.
TEST(MemoryNeeded, IsWhatTheProcessTakes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is in the way";
  // A huge page is resident as a whole where only a part of it is used.
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  ModelSpec dense = llama_spec({.dim = 1024,
                                .ffn_dim = 4096,
                                .n_layers = 6,
                                .n_heads = 16,
                                .n_kv_heads = 4,
                                .head_dim = 64,
                                .vocab_size = 30011,
                                .trained_seq_len = 4096});
  ModelSpec mixture = dense;
  for (LayerSpec& layer : mixture.layers) {
    layer.ffn_dim = 2048;
    layer.n_experts = 4;
    layer.n_active_experts = 3;
    layer.shared_ffn_dim = 1024;
    layer.shared_gate = true;
  }
  // Matmuls take their input in forms that depend on the path. "base" is slow beside others.
  std::vector<std::string> isas = supported_isas();
  if (isas.size() > 1) std::erase(isas, "base");
  for (const std::string& isa : isas) is_what_the_process_takes(dense, isa + ", ", isa);
  is_what_the_process_takes(mixture, "a mixture, ", "");
}

}  // namespace
}  // namespace minfer::test
