#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "kernels/base/bytes_text.h"
#include "kernels/comm/all_reduce_cost.h"
#include "kernels/comm/nccl_comm.h"
#include "kernels/comm/rank_group.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/json_text.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

struct AllReduceOptions {
  std::shared_ptr<const DeviceOptions> device;
  std::shared_ptr<const int64_t> repetitions;
  std::optional<int64_t> max_bytes;
  std::vector<int64_t> simulate;  // numbers of ranks
  int64_t ranks_per_host = 8;
  float alpha_us = 0, beta_gbps = 0;  // 0: those of the fitted ring, else of two H100
  float network_alpha_us = 6, network_beta_gbps = 50;
};

constexpr AllReduceKind kMeasured[] = {AllReduceKind::Ring, AllReduceKind::OneShot,
                                       AllReduceKind::TwoShot, AllReduceKind::Library};
constexpr AllReduceKind kPredicted[] = {AllReduceKind::Ring, AllReduceKind::Tree,
                                        AllReduceKind::OneShot, AllReduceKind::TwoShot,
                                        AllReduceKind::TwoLevel};

// What is summed: in place, or added to the F32 residual stream.
struct Payload {
  DType dtype;
  bool adds;
};
// A card sums activations, and F32 to compare; the CPU has no other activations.
std::vector<Payload> payloads_of(const Backend& backend) {
  const DType dtype = backend.activation_dtype();
  if (dtype == DType::F32) return {{dtype, false}};
  return {{dtype, false}, {dtype, true}, {DType::F32, false}};
}
std::string text_of(const Payload& payload) {
  return cat(payload.dtype, payload.adds ? " to residual" : "");
}

struct MeasuredReduce {
  AllReduceKind kind;
  Payload payload;
  AllReduceSample sample;
  double predicted_s = 0;  // by the fit
};
struct Fitted {
  AllReduceKind kind;
  Payload payload;
  LinkFit fit;
};
struct Measurement {
  std::string backend;
  int n_ranks = 0;
  std::vector<MeasuredReduce> reduces;
  std::vector<Fitted> fits;
};

// Bytes that each rank sends, at least, over the time.
double bus_bytes_per_second(const AllReduceSample& sample, int n_ranks) {
  return sample.bytes * 2 * (n_ranks - 1) / n_ranks / sample.seconds;
}

struct RankTensors {
  DeviceTensor x, residual;
};
struct MeasuredRanks {
  Backend& backend;  // of the first one
  std::vector<RankTensors> tensors;
  std::unique_ptr<RankLinks> links = {};  // null: those of the backends
};

// Seconds of one of many in a row; none where these ranks do not have the algorithm.
std::optional<double> seconds_of(const MeasuredRanks& ranks, AllReduceKind kind,
                                 const Payload& payload, int64_t n_bytes, int64_t repetitions) {
  const int64_t n = n_bytes / bytes_of(payload.dtype, 1);
  const int times = static_cast<int>(std::clamp<int64_t>((int64_t{1} << 26) / n_bytes, 5, 200));
  std::vector<double> samples;
  bool is_there = true;
  for (int64_t i = 0; i < repetitions && is_there; ++i) {
    throw_if_interrupted();
    double seconds = 0;
    on_all_ranks(ranks.backend, [&](int i_here, Backend& own) {
      Communicator& communicator =
          ranks.links != nullptr ? ranks.links->communicator(i_here) : *own.communicator();
      const RankTensors& memory = ranks.tensors[static_cast<size_t>(i_here)];
      const Tensor x{memory.x.view().data, payload.dtype, {1, n}};
      Tensor residual;
      if (payload.adds) residual = {memory.residual.view().data, DType::F32, {1, n}};
      const bool has = communicator.all_reduce_by(kind, x, residual);  // and a warm-up
      own.synchronize();
      if (i_here == 0) is_there = has;
      if (!has) return;
      const double start = now_seconds();
      for (int k = 0; k < times; ++k) communicator.all_reduce_by(kind, x, residual);
      own.synchronize();
      if (i_here == 0) seconds = (now_seconds() - start) / times;
    });
    check_all_ranks(ranks.backend);
    samples.push_back(seconds);
  }
  if (!is_there) return std::nullopt;
  return percentile(samples, 0.5);
}

// One algorithm for one payload, at all sizes.
void measure_kind(Measurement& measured, const MeasuredRanks& ranks, AllReduceKind kind,
                  const Payload& payload, int64_t most, int64_t repetitions) {
  std::vector<AllReduceSample> samples;
  for (int64_t n_bytes = 1024; n_bytes <= most; n_bytes *= 2) {
    const auto seconds = seconds_of(ranks, kind, payload, n_bytes, repetitions);
    if (!seconds) break;
    samples.push_back({double(n_bytes), *seconds});
    log_info(fmt::format("{}, {}, {}: {:.1f} us", name_of(kind), text_of(payload),
                         bytes_text(n_bytes), *seconds * 1e6));
  }
  if (samples.empty()) return;
  const LinkFit fit = fit_link(kind, measured.n_ranks, samples);
  measured.fits.push_back({kind, payload, fit});
  const RankTopology fitted{.n_ranks = measured.n_ranks,
                            .ranks_per_host = measured.n_ranks,
                            .inside = fit.link,
                            .between = {}};
  for (const AllReduceSample& sample : samples) {
    measured.reduces.push_back(
        {kind, payload, sample, predicted_seconds(kind, fitted, sample.bytes)});
  }
}

Measurement measure(const AllReduceOptions& options) {
  const std::unique_ptr<Backend> backend = make_backend(*options.device);
  MINFER_REQUIRE(Usage, backend->n_ranks() > 1,
                 "bench allreduce: --tp N says how many ranks, 2 at least");
  Measurement measured{
      .backend = backend->name(), .n_ranks = backend->n_ranks(), .reduces = {}, .fits = {}};
  const bool is_card = backend->free_device_bytes().has_value();
  const int64_t default_bytes = (is_card ? int64_t{256} : int64_t{16}) << 20;
  const int64_t most = options.max_bytes.value_or(default_bytes);
  const std::vector<Payload> payloads = payloads_of(*backend);
  MeasuredRanks ranks{*backend,
                      std::vector<RankTensors>(static_cast<size_t>(backend->n_ranks_here()))};
  on_all_ranks(*backend, [&](int i, Backend& own) {
    const auto zeros = [&](int64_t n_floats) {
      HostTensor host(DType::F32, {1, n_floats});
      std::fill_n(host.as<float>(), n_floats, 0.0f);
      return own.upload(host);
    };
    RankTensors& memory = ranks.tensors[static_cast<size_t>(i)];
    memory.x = zeros(most / int64_t{sizeof(float)});
    if (payloads.size() > 1) memory.residual = zeros(most / 2);
  });
  for (const Payload& payload : payloads) {
    for (const AllReduceKind kind : kMeasured) {
      measure_kind(measured, ranks, kind, payload, most, *options.repetitions);
    }
  }
  if (is_card && has_nccl() && backend->ranks() != nullptr) {
    std::vector<Backend*> backends;
    for (int i = 0; i < backend->n_ranks_here(); ++i) {
      backends.push_back(&backend->ranks()->backend(i));
    }
    ranks.links = make_nccl_links(backends);
    for (const Payload& payload : payloads) {
      measure_kind(measured, ranks, AllReduceKind::Library, payload, most, *options.repetitions);
    }
  }
  return measured;
}

struct Prediction {
  int n_ranks;
  double bytes;
  AllReduceKind kind;
  double seconds;
  std::optional<double> simulated_s;  // where that is quick
};

RankTopology topology_of(const AllReduceOptions& options,
                         const std::optional<Measurement>& measured, int n_ranks) {
  LinkCost inside{.alpha = 6.7e-6, .beta = 333e9};  // two H100: docs/parallelism.md
  if (measured) inside = measured->fits.front().fit.link;
  if (options.alpha_us > 0) inside.alpha = double(options.alpha_us) * 1e-6;
  if (options.beta_gbps > 0) inside.beta = double(options.beta_gbps) * 1e9;
  return {.n_ranks = n_ranks,
          .ranks_per_host = static_cast<int>(options.ranks_per_host),
          .inside = inside,
          .between = {.alpha = double(options.network_alpha_us) * 1e-6,
                      .beta = double(options.network_beta_gbps) * 1e9}};
}

std::vector<Prediction> predict(const AllReduceOptions& options,
                                const std::optional<Measurement>& measured) {
  constexpr int kMostSimulated = 256;
  std::vector<Prediction> predictions;
  for (const int64_t n_ranks : options.simulate) {
    const RankTopology ranks = topology_of(options, measured, static_cast<int>(n_ranks));
    for (double bytes = 1024; bytes <= double(256 << 20); bytes *= 8) {
      for (const AllReduceKind kind : kPredicted) {
        if (!applies(kind, ranks)) continue;
        Prediction p{ranks.n_ranks, bytes, kind, predicted_seconds(kind, ranks, bytes), {}};
        if (n_ranks <= kMostSimulated) p.simulated_s = simulated_seconds(kind, ranks, bytes);
        predictions.push_back(p);
      }
    }
  }
  return predictions;
}

// The smallest size, of powers of two, from which on one algorithm is no slower than another.
std::optional<double> crossover(const RankTopology& ranks, AllReduceKind kind,
                                AllReduceKind other) {
  if (!applies(kind, ranks) || !applies(other, ranks)) return std::nullopt;
  std::optional<double> found;
  for (double bytes = double(1 << 30); bytes >= 64; bytes /= 2) {
    if (predicted_seconds(kind, ranks, bytes) > predicted_seconds(other, ranks, bytes)) break;
    found = bytes;
  }
  return found;
}

constexpr AllReduceKind kOthers[] = {AllReduceKind::Tree, AllReduceKind::OneShot,
                                     AllReduceKind::TwoShot, AllReduceKind::TwoLevel};

std::string to_text(const AllReduceOptions& options, const std::optional<Measurement>& measured,
                    const std::vector<Prediction>& predictions) {
  std::string text;
  if (measured) {
    text += fmt::format("| algorithm, {} x {} | sum | bytes | us | by the fit | bus GB/s |\n",
                        measured->n_ranks, measured->backend);
    text += "| --- | --- | ---: | ---: | ---: | ---: |\n";
    for (const MeasuredReduce& m : measured->reduces) {
      text += fmt::format("| {} | {} | {:.0f} | {:.2f} | {:.2f} | {:.1f} |\n", name_of(m.kind),
                          text_of(m.payload), m.sample.bytes, m.sample.seconds * 1e6,
                          m.predicted_s * 1e6,
                          bus_bytes_per_second(m.sample, measured->n_ranks) * 1e-9);
    }
    for (const auto& [kind, payload, fit] : measured->fits) {
      text += fmt::format(
          "\n{}, {}: alpha {:.2f} us, beta {:.1f} GB/s, worst difference {:.0f} %\n", name_of(kind),
          text_of(payload), fit.link.alpha * 1e6, fit.link.beta * 1e-9, fit.worst * 100);
    }
  }
  int n_ranks = 0;
  for (const Prediction& p : predictions) {
    if (p.n_ranks != n_ranks) {
      n_ranks = p.n_ranks;
      const RankTopology ranks = topology_of(options, measured, n_ranks);
      text += fmt::format(
          "\n{} ranks, {} a host; inside {:.2f} us, {:.0f} GB/s; between {:.2f} us, {:.0f} GB/s\n",
          n_ranks, std::min(n_ranks, ranks.ranks_per_host), ranks.inside.alpha * 1e6,
          ranks.inside.beta * 1e-9, ranks.between.alpha * 1e6, ranks.between.beta * 1e-9);
      for (const AllReduceKind other : kOthers) {
        const auto bytes = crossover(ranks, AllReduceKind::Ring, other);
        if (bytes) {
          text += fmt::format("ring no slower than {} from {}\n", name_of(other),
                              bytes_text(int64_t(*bytes)));
        } else if (applies(other, ranks)) {
          text += fmt::format("ring slower than {} at 1 GB too\n", name_of(other));
        }
      }
      text += "| bytes | algorithm | predicted us | simulated us |\n| ---: | --- | ---: | ---: |\n";
    }
    text +=
        fmt::format("| {:.0f} | {} | {:.2f} | {} |\n", p.bytes, name_of(p.kind), p.seconds * 1e6,
                    p.simulated_s ? fmt::format("{:.2f}", *p.simulated_s * 1e6) : "-");
  }
  return text;
}

Json to_object(const AllReduceOptions& options, const std::optional<Measurement>& measured,
               const std::vector<Prediction>& predictions) {
  Json results = Json::array(), fits = Json::array(), simulated = Json::array();
  if (measured) {
    for (const MeasuredReduce& m : measured->reduces) {
      results.push_back(
          {{"algorithm", name_of(m.kind)},
           {"type", cat(m.payload.dtype)},
           {"adds_to_residual", m.payload.adds},
           {"bytes", int64_t(m.sample.bytes)},
           {"us", m.sample.seconds * 1e6},
           {"predicted_us", m.predicted_s * 1e6},
           {"bus_gb_per_s", bus_bytes_per_second(m.sample, measured->n_ranks) * 1e-9}});
    }
    for (const auto& [kind, payload, fit] : measured->fits) {
      fits.push_back({{"algorithm", name_of(kind)},
                      {"type", cat(payload.dtype)},
                      {"adds_to_residual", payload.adds},
                      {"alpha_us", fit.link.alpha * 1e6},
                      {"beta_gb_per_s", fit.link.beta * 1e-9},
                      {"worst_difference", fit.worst}});
    }
  }
  for (const Prediction& p : predictions) {
    const RankTopology ranks = topology_of(options, measured, p.n_ranks);
    simulated.push_back(
        {{"ranks", p.n_ranks},
         {"ranks_per_host", ranks.ranks_per_host},
         {"bytes", int64_t(p.bytes)},
         {"algorithm", name_of(p.kind)},
         {"predicted_us", p.seconds * 1e6},
         {"simulated_us", p.simulated_s ? Json(*p.simulated_s * 1e6) : Json(nullptr)}});
  }
  return {{"backend", measured ? Json(measured->backend) : Json(nullptr)},
          {"ranks", measured ? Json(measured->n_ranks) : Json(nullptr)},
          {"results", results},
          {"fits", fits},
          {"simulated", simulated}};
}

void run_all_reduce(const AllReduceOptions& options, Context& context) {
  join_mpi_ranks(*options.device, context);
  std::optional<Measurement> measured;
  const bool has_ranks = rank_count(*options.device) > 1;
  if (has_ranks || options.simulate.empty()) measured = measure(options);
  const std::vector<Prediction> predictions = predict(options, measured);
  if (context.common.json) {
    return context.out.line(pretty(to_object(options, measured, predictions)));
  }
  context.out.text(to_text(options, measured, predictions));
}

}  // namespace

void add_bench_all_reduce_command(CommandNode& bench, std::shared_ptr<const DeviceOptions> device,
                                  std::shared_ptr<const int64_t> repetitions, Context& context) {
  auto options = std::make_shared<AllReduceOptions>();
  options->device = std::move(device);
  options->repetitions = std::move(repetitions);
  CommandNode& command =
      bench.add_command("allreduce", "All-reduces between ranks, and what they cost with more",
                        "  minfer bench allreduce --tp 2\n"
                        "  minfer bench allreduce --simulate 8,64,4096 --json",
                        [options, &context] { run_all_reduce(*options, context); });
  command.add_integer("--max-bytes", options->max_bytes, 4096, int64_t{1} << 32,
                      "The largest sum in bytes [256 MB on cards, 16 MB on the CPU]");
  command.add_integers("--simulate", options->simulate, 2, 4096,
                       "Numbers of ranks to predict by the alpha-beta model");
  command.add_integer("--ranks-per-host", options->ranks_per_host, 1, 4096,
                      "Of the predictions: ranks that are linked directly");
  command.add_number("--alpha", options->alpha_us, {0, 1e6f},
                     "Microseconds of a message inside a host; 0: as fitted, or 6.7");
  command.add_number("--beta", options->beta_gbps, {0, 1e6f},
                     "GB/s inside a host; 0: as fitted, or 333");
  command.add_number("--network-alpha", options->network_alpha_us, {0, 1e6f},
                     "Microseconds of a message between hosts");
  command.add_number("--network-beta", options->network_beta_gbps, {0.001f, 1e6f},
                     "GB/s between hosts");
}

}  // namespace minfer
