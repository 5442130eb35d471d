#include "kernels/comm/all_reduce_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/comm/ring.h"

namespace minfer {
namespace {

int levels_of(int n_ranks) { return std::bit_width(unsigned(n_ranks) - 1); }

bool is_one_host(const RankTopology& r) { return r.n_ranks <= r.ranks_per_host; }

// A ring through all ranks. A chunk makes 2 (n - 1) hops, two less than twice round; and a link
// between hosts has to carry as many chunks one after the other.
double ring_seconds(const RankTopology& r, double bytes) {
  const int n_hops = ring_steps(r.n_ranks);
  const double chunk = bytes / r.n_ranks;
  if (is_one_host(r)) return n_hops * r.inside.seconds(chunk);
  const int hosts = (r.n_ranks + r.ranks_per_host - 1) / r.ranks_per_host;
  const int n_between = std::min(2 * hosts, n_hops);
  const double along =
      n_between * r.between.seconds(chunk) + (n_hops - n_between) * r.inside.seconds(chunk);
  return std::max(along, n_hops * r.between.seconds(chunk));
}

// Rounds of messages. In each, every rank sends its messages one after the other, and can go on
// with what came to it in the rounds before.
class Simulation {
 public:
  explicit Simulation(const RankTopology& ranks)
      : ranks_(ranks), ready_(size_t(ranks.n_ranks)), next_(ready_) {}

  void send(int from, int to, double bytes) {
    double& free = ready_[size_t(from)];
    const bool is_inside = from / ranks_.ranks_per_host == to / ranks_.ranks_per_host;
    const LinkCost& link = ranks_.link(from, to);
    const double arrived = free + link.seconds(bytes);
    free = is_inside ? free + bytes / link.beta : arrived;
    next_[size_t(to)] = std::max(next_[size_t(to)], arrived);
  }
  void end_round() {
    for (size_t i = 0; i < ready_.size(); ++i) {
      next_[i] = std::max(next_[i], ready_[i]);
    }
    ready_ = next_;
  }
  double seconds() const { return *std::ranges::max_element(ready_); }

 private:
  const RankTopology& ranks_;
  std::vector<double> ready_, next_;
};

// One step of a ring among the ranks first + i * stride, i < n: each sends a chunk to the next.
void send_round(Simulation& s, int first, int stride, int n, double bytes) {
  for (int i = 0; i < n; ++i) {
    s.send(first + i * stride, first + (i + 1) % n * stride, bytes / n);
  }
}

}  // namespace

std::string_view name_of(AllReduceKind kind) {
  constexpr std::string_view kNames[] = {"ring",     "tree",      "one-shot",
                                         "two-shot", "two-level", "nccl"};
  return kNames[size_t(kind)];
}

bool applies(AllReduceKind kind, const RankTopology& ranks) {
  return kind != AllReduceKind::TwoLevel ||
         (!is_one_host(ranks) && ranks.n_ranks % ranks.ranks_per_host == 0);
}

double predicted_seconds(AllReduceKind kind, const RankTopology& r, double bytes) {
  const int n = r.n_ranks;
  if (n <= 1) return 0;
  const double others_here = std::min(n, r.ranks_per_host) - 1, others_away = n - 1 - others_here;
  // What a rank sends to each other one.
  const auto to_all = [&](double each) {
    const double here = others_here * each / r.inside.beta;
    return is_one_host(r) ? here + r.inside.alpha : here + others_away * r.between.seconds(each);
  };
  switch (kind) {
    case AllReduceKind::Ring:
    case AllReduceKind::Library:  // NCCL takes a ring for most sizes
      return ring_seconds(r, bytes);
    case AllReduceKind::Tree: {
      double seconds = 0;
      for (int level = 0; level < levels_of(n); ++level) {
        seconds += 2 * r.link(0, 1 << level).seconds(bytes);
      }
      return seconds;
    }
    case AllReduceKind::OneShot:
      return to_all(bytes);
    case AllReduceKind::TwoShot:
      return 2 * to_all(bytes / n);
    case AllReduceKind::TwoLevel: {
      const int g = r.ranks_per_host, hosts = n / g;
      return ring_steps(g) * r.inside.seconds(bytes / g) +
             ring_steps(hosts) * r.between.seconds(bytes / g / hosts);
    }
  }
  return 0;
}

double simulated_seconds(AllReduceKind kind, const RankTopology& r, double bytes) {
  const int n = r.n_ranks;
  if (n <= 1) return 0;
  Simulation s(r);
  const auto to_all = [&](double each) {
    for (int d = 1; d < n; ++d) {
      for (int rank = 0; rank < n; ++rank) s.send(rank, (rank + d) % n, each);
    }
    s.end_round();
  };
  switch (kind) {
    case AllReduceKind::Ring:
    case AllReduceKind::Library:  // NCCL takes a ring for most sizes
      for (int step = 0; step < ring_steps(n); ++step) {
        send_round(s, 0, 1, n, bytes);
        s.end_round();
      }
      break;
    case AllReduceKind::Tree:
      for (int level = 0; level < levels_of(n); ++level) {  // to rank 0
        const int d = 1 << level;
        for (int rank = d; rank < n; rank += 2 * d) s.send(rank, rank - d, bytes);
        s.end_round();
      }
      for (int level = levels_of(n) - 1; level >= 0; --level) {  // and back
        const int d = 1 << level;
        for (int rank = d; rank < n; rank += 2 * d) s.send(rank - d, rank, bytes);
        s.end_round();
      }
      break;
    case AllReduceKind::OneShot:
      to_all(bytes);
      break;
    case AllReduceKind::TwoShot:
      to_all(bytes / n);
      to_all(bytes / n);
      break;
    case AllReduceKind::TwoLevel: {
      const int g = r.ranks_per_host, hosts = n / g;
      const auto inside = [&](int n_steps) {
        for (int step = 0; step < n_steps; ++step) {
          for (int host = 0; host < hosts; ++host) send_round(s, host * g, 1, g, bytes);
          s.end_round();
        }
      };
      inside(g - 1);
      for (int step = 0; step < ring_steps(hosts); ++step) {
        for (int i = 0; i < g; ++i) send_round(s, i, g, hosts, bytes / g);
        s.end_round();
      }
      inside(g - 1);
      break;
    }
  }
  return s.seconds();
}

namespace {

// The relative parts of a sample's time that alpha and 1 / beta are multiplied by.
struct Row {
  double x, y;
};

// The link with the least sum of weight * (x alpha + y / beta - 1)^2.
LinkCost least_squares(std::span<const Row> rows, std::span<const double> weights) {
  double xx = 0, xy = 0, yy = 0, xt = 0, yt = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [x, y] = rows[i];
    xx += weights[i] * x * x;
    xy += weights[i] * x * y;
    yy += weights[i] * y * y;
    xt += weights[i] * x;
    yt += weights[i] * y;
  }
  const double determinant = xx * yy - xy * xy;
  const double alpha = (xt * yy - yt * xy) / determinant;
  const double inverse_beta = (xx * yt - xy * xt) / determinant;
  // If the nearest pair has one of the two below 0, the other one alone.
  if (!(alpha > 0)) return {0, yy / yt};
  if (!(inverse_beta > 0)) return {xt / xx, 1e15};
  return {alpha, 1 / inverse_beta};
}

}  // namespace

LinkFit fit_link(AllReduceKind kind, int n_ranks, std::span<const AllReduceSample> samples) {
  // seconds = a alpha + b bytes / beta, with a and b of the formula.
  const auto topology = [&](const LinkCost& link) {
    return RankTopology{
        .n_ranks = n_ranks, .ranks_per_host = n_ranks, .inside = link, .between = {}};
  };
  const double a = predicted_seconds(kind, topology({1, INFINITY}), 1);
  const double b = predicted_seconds(kind, topology({0, 1}), 1);
  std::vector<Row> rows;
  for (const auto& [bytes, seconds] : samples) rows.push_back({a / seconds, b * bytes / seconds});
  // Lawson's method: weights grow where the difference is large, until the largest is smallest.
  std::vector<double> weights(rows.size(), 1.0);
  LinkFit best{.link = {}, .worst = INFINITY};
  for (int round = 0; round < 200; ++round) {
    const LinkCost link = least_squares(rows, weights);
    double worst = 0, sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double difference = std::abs(rows[i].x * link.alpha + rows[i].y / link.beta - 1);
      worst = std::max(worst, difference);
      weights[i] *= difference;
      sum += weights[i];
    }
    if (worst < best.worst) best = {link, worst};
    if (!(sum > 0)) break;  // it fits exactly
    for (double& weight : weights) weight /= sum;
  }
  return best;
}

}  // namespace minfer
