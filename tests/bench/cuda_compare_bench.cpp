// Runs single kernels on given inputs for scripts/compare_torch.py, which runs PyTorch on the same
// ones: it answers each line of stdin by one JSON object on stdout.
//
//   prepare OPERATION DIRECTORY N_SETS N_LAUNCHES DIM...   {"extra_bytes": of a workspace}
//   sample                                                 {"us": of one launch}
//
// `prepare` reads the inputs from DIRECTORY/in0, in1, ... and writes the outputs to out0, ...: raw
// row-major elements. An input that is shorter than its shape repeats, and only as much of the
// output is written as belongs to the given rows of in0. `sample` replays a graph of N_LAUNCHES
// launches, which take N_SETS copies of all operands in turn, so that none is in L2 when its turn
// comes. An error is answered by {"error": text}.
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {
namespace {

using Json = nlohmann::json;
using Tensors = std::vector<Tensor>;
using Dims = std::vector<int64_t>;

struct Operand {
  DType dtype;
  Shape shape;
};
Operand half(const Shape& shape) { return {DType::F16, shape}; }

struct Operation {
  std::vector<Operand> inputs, outputs;
  std::function<void(cudaStream_t, const Tensors& in, const Tensors& out)> launch;
  int64_t extra_bytes = 0;  // of a workspace
  // What is written of an output; all of it if null.
  std::function<Tensors(const Tensors& out)> results = nullptr;
};

constexpr float kEps = 1e-5f;

// Operations of rows [DIM0, DIM1]; null if `name` is none.
std::optional<Operation> row_operation(const std::string& name, const Dims& dims) {
  if (dims.size() != 2) return {};
  const Operand x = half({dims[0], dims[1]}), row = half({dims[1]});
  const auto make = [&](std::vector<Operand> inputs, auto launch) {
    return Operation{std::move(inputs), {x}, launch};
  };
  const auto gelu_of = [&](GeluKind kind) {
    return make({x}, [kind](auto s, auto& in, auto& out) { gelu(s, out[0], in[0], {}, kind); });
  };
  if (name == "gelu_erf") return gelu_of(GeluKind::Erf);
  if (name == "gelu_tanh") return gelu_of(GeluKind::Tanh);
  if (name == "silu") return make({x}, [](auto s, auto& in, auto& out) { silu(s, out[0], in[0]); });
  if (name == "softmax")
    return make({x}, [](auto s, auto& in, auto& out) { softmax(s, out[0], in[0]); });
  if (name == "bias_gelu_erf") {
    return make({x, row},
                [](auto s, auto& in, auto& out) { gelu(s, out[0], in[0], in[1], GeluKind::Erf); });
  }
  if (name == "swiglu") {
    return make({x, x}, [](auto s, auto& in, auto& out) {
      glu(s, out[0], in[0], in[1], Activation::Silu);
    });
  }
  if (name == "rms_norm") {
    return make({x, row},
                [](auto s, auto& in, auto& out) { rms_norm(s, out[0], in[0], in[1], kEps); });
  }
  if (name == "layer_norm") {
    return make({x, row, row}, [](auto s, auto& in, auto& out) {
      layer_norm(s, out[0], in[0], in[1], in[2], kEps);
    });
  }
  if (name == "layer_norm_gelu_erf") {
    return make({x, row, row}, [](auto s, auto& in, auto& out) {
      layer_norm_gelu(s, out[0], in[0], in[1], in[2], kEps, GeluKind::Erf);
    });
  }
  return {};
}

// gemm: out [M, N] = x [M, K] w [N, K]ᵀ; M, N, K
Operation gemm_operation(Epilogue epilogue, const Dims& dims) {
  MINFER_CHECK(dims.size() == 3, "a GEMM takes M N K");
  const int64_t m = dims[0], n = dims[1], k = dims[2];
  return {{half({m, k}), half({n, k})}, {half({m, n})}, [epilogue](auto s, auto& in, auto& out) {
            const GemmPart part{in[1], out[0], {}};
            gemm(s, in[0], {&part, 1}, epilogue);
          }};
}

// The cache of a sequence as one KvLayer over keys and values that are somebody else's memory.
KvLayer layer_over(const Tensor& keys, const Tensor& values) {
  KvLayer layer;
  layer.keys = DeviceTensor(keys, [](void*) {});
  layer.values = DeviceTensor(values, [](void*) {});
  layer.n_pages = keys.shape[0];
  layer.n_kv_heads = keys.shape[1];
  layer.head_dim = keys.shape[3];
  return layer;
}

float scale_of(int64_t head_dim) { return 1 / std::sqrt(float(head_dim)); }

// q, keys and values [pages, key/value heads, kPagePositions, head_dim]; tokens, heads, key/value
// heads, head_dim
Operation prefill_operation(const Dims& dims) {
  MINFER_CHECK(dims.size() == 4, "attention takes TOKENS HEADS KV_HEADS HEAD_DIM");
  const int64_t n_pages = pages_for(dims[0]);
  const Operand cache = half({n_pages, dims[2], kPagePositions, dims[3]});
  const Operand q = half({dims[0], dims[1], dims[3]});
  const auto pages = std::make_shared<DeviceTensor>(pages_in_order(n_pages));
  return {{q, cache, cache}, {q}, [pages, n_pages](auto s, auto& in, auto& out) {
            const KvLayer layer = layer_over(in[1], in[2]);
            const CachePlace place{static_cast<const int32_t*>(pages->view().data), n_pages, 0};
            attention_prefill(s, out[0], in[0], layer, place, scale_of(layer.head_dim));
          }};
}

// One query at the last of `context` positions, whose key and value k and v it appends to a cache
// as above: q, k, v, keys, values; context, heads, key/value heads, head_dim
Operation decode_operation(const Dims& dims) {
  MINFER_CHECK(dims.size() == 4, "attention takes CONTEXT HEADS KV_HEADS HEAD_DIM");
  const int64_t context = dims[0], n_pages = pages_for(context);
  const Operand cache = half({n_pages, dims[2], kPagePositions, dims[3]});
  const Operand q = half({1, dims[1], dims[3]}), row = half({1, dims[2], dims[3]});
  struct State {
    DeviceTensor pages, pos, workspace;
  };
  const int64_t n_bytes = attention_decode_workspace(1, dims[1], dims[2], dims[3], context);
  const auto state =
      std::make_shared<State>(State{pages_in_order(n_pages), allocate_device(DType::F32, {1}),
                                    allocate_device(DType::U8, {n_bytes})});
  const auto last = narrow<int32_t>(context - 1);
  MINFER_CUDA_CHECK(cudaMemcpy(state->pos.view().data, &last, sizeof last, cudaMemcpyHostToDevice));
  MINFER_CUDA_CHECK(cudaMemset(state->workspace.view().data, 0, size_t(n_bytes)));
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  return {{q, row, row, cache, cache},
          {q},
          [state, context](auto s, auto& in, auto& out) {
            KvLayer layer = layer_over(in[3], in[4]);
            attention_decode(s, {.out = out[0],
                                 .q = in[0],
                                 .k = in[1],
                                 .v = in[2],
                                 .rope = {},
                                 .cache = &layer,
                                 .pages = static_cast<const int32_t*>(state->pages.view().data),
                                 .pos = static_cast<const int*>(state->pos.view().data),
                                 .max_seq_len = context,
                                 .scale = scale_of(layer.head_dim),
                                 .workspace = state->workspace.view().data});
          },
          n_bytes};
}

// logits [rows, experts] F32; weights F32, and chosen experts int32, [rows, active]; rows, experts,
// active
Operation route_operation(const Dims& dims) {
  MINFER_CHECK(dims.size() == 3, "route takes ROWS EXPERTS ACTIVE");
  const auto routing = [dims](const Tensor& memory) {
    return Routing(memory.data, dims[0], dims[1], dims[2]);
  };
  const auto spec = std::make_shared<LayerSpec>();
  spec->n_experts = dims[1];
  spec->n_active_experts = dims[2];
  return {{{DType::F32, {dims[0], dims[1]}}},
          {{DType::U8, {Routing::bytes(dims[0], dims[1], dims[2])}}},
          [routing, spec](auto s, auto& in, auto& out) {
            route(s, {routing(out[0]), in[0], {}, {}, *spec});
          },
          0,
          [routing, dims](const Tensors& out) -> Tensors {
            const Routing r = routing(out[0]);
            return {{r.weights, DType::F32, {dims[0], dims[2]}},
                    {r.chosen, DType::F32, {dims[0], dims[2]}}};  // as large as int32
          }};
}

Operation operation(const std::string& name, const Dims& dims) {
  if (std::optional<Operation> rows = row_operation(name, dims)) return *rows;
  if (name == "gemm") return gemm_operation(Epilogue::Store, dims);
  if (name == "gemm_gelu_erf") return gemm_operation(Epilogue::GeluErf, dims);
  if (name == "gemm_gelu_tanh") return gemm_operation(Epilogue::GeluTanh, dims);
  if (name == "attention_prefill") return prefill_operation(dims);
  if (name == "attention_decode") return decode_operation(dims);
  if (name == "route") return route_operation(dims);
  throw Error(ErrorKind::Usage, cat("no operation ", name, " of ", dims.size(), " dims"));
}

// An operation with its operands, timed.
class Job {
 public:
  Job(cudaStream_t stream, std::istream& line) : stream_(stream), timer_(stream) {
    std::string name, directory;
    int64_t n_sets = 0, n_launches = 0;
    line >> name >> directory >> n_sets >> n_launches;
    const Dims dims{std::istream_iterator<int64_t>(line), {}};
    MINFER_REQUIRE(Usage, n_sets >= 1 && n_launches >= 1, "prepare: ", n_sets, " sets, ",
                   n_launches, " launches");
    operation_ = operation(name, dims);
    for (int64_t i = 0; i < n_sets; ++i) {
      sets_.push_back({tensors_of(operation_.inputs), tensors_of(operation_.outputs)});
      for (size_t j = 0; j < operation_.inputs.size(); ++j) {
        const double share = fill(cat(directory, "/in", j), sets_.back().in[j]);
        if (j == 0) given_share_ = share;
      }
    }
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    operation_.launch(stream, sets_[0].in, sets_[0].out);
    MINFER_CUDA_CHECK(cudaStreamSynchronize(stream));
    write_results(directory);
    graph_ = capture_graph(stream, [&] {
      for (int64_t i = 0; i < n_launches; ++i) {
        const Set& set = sets_[size_t(i % n_sets)];
        operation_.launch(stream, set.in, set.out);
      }
    });
    n_launches_ = n_launches;
  }

  // The first replay is not counted: meanwhile the host enqueues the one that is.
  double sample_us() {
    MINFER_CUDA_CHECK(cudaGraphLaunch(graph_.get(), stream_));
    return timer_.us(std::as_const(graph_)) / double(n_launches_);
  }
  int64_t extra_bytes() const { return operation_.extra_bytes; }

 private:
  struct Set {
    Tensors in, out;
  };

  Tensors tensors_of(const std::vector<Operand>& operands) {
    Tensors tensors;
    for (const Operand& operand : operands) {
      memory_.push_back(allocate_device(operand.dtype, operand.shape));
      tensors.push_back(memory_.back());
    }
    return tensors;
  }

  // Copies the file into the tensor, again and again until it is full. Returns the share of the
  // tensor that the file is.
  static double fill(const std::string& path, const Tensor& tensor) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    MINFER_REQUIRE(Input, file.good(), path, ": cannot be read");
    std::vector<char> bytes(size_t(file.tellg()));
    file.seekg(0);
    file.read(bytes.data(), std::ssize(bytes));
    const auto n_bytes = size_t(tensor.n_bytes());
    MINFER_REQUIRE(Input, !bytes.empty() && n_bytes % bytes.size() == 0, path, ": ", bytes.size(),
                   " bytes for a tensor of ", n_bytes);
    for (size_t at = 0; at < n_bytes; at += bytes.size()) {
      MINFER_CUDA_CHECK(cudaMemcpy(static_cast<char*>(tensor.data) + at, bytes.data(), bytes.size(),
                                   cudaMemcpyHostToDevice));
    }
    return double(bytes.size()) / double(n_bytes);
  }

  void write_results(const std::string& directory) const {
    const Tensors& out = sets_[0].out;
    const Tensors results = operation_.results ? operation_.results(out) : out;
    for (size_t i = 0; i < results.size(); ++i) {
      std::vector<char> bytes(size_t(double(results[i].n_bytes()) * given_share_));
      MINFER_CUDA_CHECK(
          cudaMemcpy(bytes.data(), results[i].data, bytes.size(), cudaMemcpyDeviceToHost));
      std::ofstream file(cat(directory, "/out", i), std::ios::binary);
      file.write(bytes.data(), std::ssize(bytes));
      MINFER_REQUIRE(System, file.flush().good(), directory, "/out", i, ": cannot be written");
    }
  }

  cudaStream_t stream_;
  Operation operation_;
  std::vector<DeviceTensor> memory_;
  std::vector<Set> sets_;
  double given_share_ = 1;
  StreamTimer timer_;
  GraphExec graph_;
  int64_t n_launches_ = 1;
};

void serve() {
  std::optional<Stream> stream;
  std::optional<Job> job;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      std::istringstream words(line);
      std::string command;
      words >> command;
      if (!stream) {
        use_device(0);
        stream = make_stream();
      }
      if (command == "prepare") {
        job.reset();  // its memory before the next one's
        job.emplace(stream->get(), words);
        answer["extra_bytes"] = job->extra_bytes();
      } else {
        MINFER_REQUIRE(Usage, command == "sample" && job, "not understood: ", line);
        answer["us"] = job->sample_us();
      }
    } catch (const Error& e) {
      answer["error"] = e.what();
    }
    std::cout << answer.dump() << std::endl;
  }
}

}  // namespace
}  // namespace minfer::cuda

int main() { minfer::cuda::serve(); }
