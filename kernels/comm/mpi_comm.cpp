#include "kernels/comm/mpi_comm.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/cancelled.h"
#include "kernels/comm/columns.h"
#include "kernels/comm/ring.h"

namespace minfer {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBeatPeriod{250};
constexpr milliseconds kSilence{3000};
// A rank that is alive and yet does not come to the same sum: a bug, or a card that hangs.
constexpr milliseconds kDeadline{120'000};
// What waits for a file, or for somebody who types, takes as long as it takes: heartbeats say that
// the other ranks are there.
constexpr milliseconds kNoDeadline = milliseconds::max();
// mpirun takes 2 s more to end all processes of a run that has not begun.
constexpr milliseconds kStartAndEnd{2500};
// MPI counts elements of a message as int; shorter messages also leave heartbeats room.
constexpr size_t kMessageBytes = size_t{64} << 20;

enum Tag : int { kBeat = 1, kReduce, kGatherPlace, kGatherPart, kFromRank0Size, kFromRank0 };

void require_success(int code) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int n = 0;
  MPI_Error_string(code, text, &n);
  throw Error(ErrorKind::Peer, cat("MPI: ", shortened({text, static_cast<size_t>(n)}, 200)));
}

// Known before MPI_Init; -1: mpirun has not started this process.
int rank_of_mpirun() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? -1 : std::atoi(rank);
}

// Time that this process has been running: a longer gap between two looks is one in which it was
// stopped.
class RunningTime {
 public:
  milliseconds now() {
    const Clock::time_point at = Clock::now();
    sum_ += std::min<Clock::duration>(at - std::exchange(last_, at), milliseconds(500));
    return std::chrono::duration_cast<milliseconds>(sum_);
  }

 private:
  Clock::time_point last_ = Clock::now();
  Clock::duration sum_{0};
};

// $MINFER_START_SECONDS, for hosts that load programs from slow disks.
milliseconds longest_start() {
  const char* const seconds = std::getenv("MINFER_START_SECONDS");
  const long n = seconds == nullptr ? 0 : std::strtol(seconds, nullptr, 10);
  return n > 0 ? milliseconds(1000 * std::min(n, 86'400L)) : kStartAndEnd;
}

// Ends the process if MPI_Init or MPI_Finalize, which wait for all ranks, do not return.
class Watchdog {
 public:
  Watchdog(const std::string& what, milliseconds longest)
      : thread_([this, what, longest] {
          RunningTime time;
          while (!is_over_.load()) {
            if (time.now() > longest) {
              // All ranks but the one that is missing end here: one or two are to say so.
              const std::string line = cat("minfer: error: not all ranks have ", what, '\n');
              if (rank_of_mpirun() <= 1) (void)!::write(STDERR_FILENO, line.data(), line.size());
              ::_exit(static_cast<int>(ErrorKind::Peer));
            }
            std::this_thread::sleep_for(milliseconds(20));
          }
        }) {}
  ~Watchdog() {
    is_over_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

class OpenMpiProcess final : public MpiProcess {
 public:
  explicit OpenMpiProcess(const MpiOptions& options);
  ~OpenMpiProcess() override { stop_thread(); }

  Communicator& communicator() override { return communicator_; }
  int n_ranks_of_host() const override { return n_ranks_of_host_; }
  int rank_of_host() const override { return rank_of_host_; }
  std::string name() const override { return name_of(rank_); }
  std::string from_rank_0(std::string bytes) override;
  int64_t sum(int64_t n) override;
  void finish() override;
  [[noreturn]] void end_all(int exit_code) override;

 private:
  // What is on its way, and how it is waited for.
  class Transfers {
   public:
    explicit Transfers(OpenMpiProcess& process) : process_(process) {}
    void send(int to, Tag tag, std::span<const std::byte> bytes);
    void receive(int from, Tag tag, std::span<std::byte> bytes);
    // Until all has been sent and received, with as many bytes as expected.
    void wait(milliseconds deadline = kDeadline);

   private:
    OpenMpiProcess& process_;
    std::vector<MPI_Request> requests_;
    std::vector<std::pair<int, int>> expected_;  // (rank, bytes) of each request; rank -1: sent
    int waits_for_ = -1;                         // the rank to name if none comes
  };

  class MpiCommunicator final : public Communicator {
   public:
    explicit MpiCommunicator(OpenMpiProcess& process) : process_(process) {}
    int rank() const override { return process_.rank_; }
    int n_ranks() const override { return process_.n_ranks_; }
    int n_processes_of_host() const override { return process_.n_ranks_of_host_; }
    void all_reduce(Tensor x) override;
    bool all_reduce_by(AllReduceKind kind, Tensor x, Tensor residual) override;
    void all_gather(Tensor out, Tensor part, int64_t begin) override;

   private:
    OpenMpiProcess& process_;
    std::vector<std::byte> sent_, received_;  // grow to the largest that was asked for
  };

  std::string name_of(int rank) const {
    return cat("rank ", rank, " (", hosts_[static_cast<size_t>(rank)], ')');
  }
  // Calls is_over() with the mutex held until it returns true. waits_for: the rank to name, or -1.
  template <typename IsOver>
  void poll(int waits_for, milliseconds deadline, IsOver is_over);
  // One of MPI's own collective operations, which start(request) begins.
  template <typename Start>
  void collective(Start start);
  // Sends and receives heartbeats that are due. Called with the mutex held.
  void beat();
  void watch();  // the thread that does it while no wait does
  void stop_thread();

  const MpiOptions options_;
  MPI_Comm all_ = MPI_COMM_NULL;
  int rank_ = 0, n_ranks_ = 1, rank_of_host_ = 0, n_ranks_of_host_ = 1;
  std::vector<std::string> hosts_;  // by rank
  MpiCommunicator communicator_{*this};

  std::mutex mutex_;  // of all calls of MPI, and of what follows
  RunningTime time_;
  milliseconds next_beat_{0}, last_heard_{0};
  char sent_beat_ = 0, received_beat_ = 0;
  MPI_Request beat_out_ = MPI_REQUEST_NULL, beat_in_ = MPI_REQUEST_NULL;
  std::atomic<bool> is_over_{false};
  std::thread watcher_;
};

OpenMpiProcess::OpenMpiProcess(const MpiOptions& options) : options_(options) {
  const milliseconds longest = longest_start();
  const Watchdog watchdog(cat("started within ", double(longest.count()) / 1000,
                              " s (MINFER_START_SECONDS gives them longer)"),
                          longest);
  int provided = 0;
  require_success(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  MINFER_REQUIRE(Peer, provided >= MPI_THREAD_SERIALIZED, "MPI: no support for several threads");
  require_success(MPI_Comm_dup(MPI_COMM_WORLD, &all_));
  MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(all_, &rank_);
  MPI_Comm_size(all_, &n_ranks_);
  MPI_Comm of_host = MPI_COMM_NULL;
  require_success(MPI_Comm_split_type(all_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &of_host));
  MPI_Comm_rank(of_host, &rank_of_host_);
  MPI_Comm_size(of_host, &n_ranks_of_host_);
  MPI_Comm_free(&of_host);

  constexpr int kNameBytes = MPI_MAX_PROCESSOR_NAME;
  char host[kNameBytes] = {};
  int n = 0;
  MPI_Get_processor_name(host, &n);
  std::vector<char> hosts(static_cast<size_t>(kNameBytes) * static_cast<size_t>(n_ranks_));
  require_success(
      MPI_Allgather(host, kNameBytes, MPI_CHAR, hosts.data(), kNameBytes, MPI_CHAR, all_));
  for (int rank = 0; rank < n_ranks_; ++rank) {
    hosts_.emplace_back(hosts.data() + static_cast<ptrdiff_t>(rank) * kNameBytes);
  }
  if (n_ranks_ > 1) watcher_ = std::thread([this] { watch(); });
}

void OpenMpiProcess::beat() {
  const milliseconds now = time_.now();
  if (n_ranks_ == 1 || now < next_beat_) return;
  next_beat_ = now + kBeatPeriod;
  const int next = (rank_ + 1) % n_ranks_, before = (rank_ + n_ranks_ - 1) % n_ranks_;
  int is_sent = 0, is_received = 0;
  require_success(MPI_Test(&beat_out_, &is_sent, MPI_STATUS_IGNORE));  // true where there is none
  if (is_sent != 0) {
    require_success(MPI_Isend(&sent_beat_, 1, MPI_CHAR, next, kBeat, all_, &beat_out_));
  }
  do {
    if (beat_in_ == MPI_REQUEST_NULL) {
      require_success(MPI_Irecv(&received_beat_, 1, MPI_CHAR, before, kBeat, all_, &beat_in_));
    }
    require_success(MPI_Test(&beat_in_, &is_received, MPI_STATUS_IGNORE));
    if (is_received != 0) last_heard_ = now;
  } while (is_received != 0);
  if (now - last_heard_ <= kSilence) return;
  next_beat_ = milliseconds::max();  // told once
  throw Error(ErrorKind::Peer,
              cat(name_of(before), " has been silent for ", kSilence.count() / 1000, " s"));
}

void OpenMpiProcess::watch() {
  while (!is_over_.load()) {
    try {
      // If a wait has the mutex, it sees to the heartbeats itself.
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (lock.owns_lock()) beat();
    } catch (const Error& error) {
      options_.on_lost_rank(error);
      return;
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

void OpenMpiProcess::stop_thread() {
  is_over_.store(true);
  if (watcher_.joinable()) watcher_.join();
}

template <typename IsOver>
void OpenMpiProcess::poll(int waits_for, milliseconds deadline, IsOver is_over) try {
  // Ranks run in step: most waits are short. Where there are more ranks than cores, a rank that
  // waits must let the others run.
  constexpr int kSpins = 1000;
  std::optional<milliseconds> began;
  for (int64_t i = 0;; ++i) {
    {
      const std::lock_guard lock(mutex_);
      if (is_over()) return;
      beat();
      const milliseconds now = time_.now();
      if (!began) began = now;
      MINFER_REQUIRE(Peer, now - *began < deadline,
                     waits_for < 0 ? std::string("a rank") : name_of(waits_for),
                     " has not answered for ", deadline.count() / 1000, " s");
    }
    if (options_.cancelled != nullptr && options_.cancelled->load()) throw Cancelled();
    if (i < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
} catch (...) {
  // What MPI still writes to is gone now: no heartbeat may let it go on.
  const std::lock_guard lock(mutex_);
  next_beat_ = milliseconds::max();
  throw;
}

void OpenMpiProcess::Transfers::send(int to, Tag tag, std::span<const std::byte> bytes) {
  const std::lock_guard lock(process_.mutex_);
  for (size_t at = 0; at < bytes.size(); at += kMessageBytes) {
    const auto n = static_cast<int>(std::min(kMessageBytes, bytes.size() - at));
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    expected_.emplace_back(-1, n);
    require_success(MPI_Isend(bytes.data() + at, n, MPI_BYTE, to, tag, process_.all_, &request));
  }
}

void OpenMpiProcess::Transfers::receive(int from, Tag tag, std::span<std::byte> bytes) {
  const std::lock_guard lock(process_.mutex_);
  waits_for_ = from;
  for (size_t at = 0; at < bytes.size(); at += kMessageBytes) {
    const auto n = static_cast<int>(std::min(kMessageBytes, bytes.size() - at));
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    expected_.emplace_back(from, n);
    require_success(MPI_Irecv(bytes.data() + at, n, MPI_BYTE, from, tag, process_.all_, &request));
  }
}

void OpenMpiProcess::Transfers::wait(milliseconds deadline) {
  std::vector<MPI_Status> statuses(requests_.size());
  process_.poll(waits_for_, deadline, [&] {
    int are_over = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &are_over,
                                 statuses.data());
    if (code == MPI_ERR_IN_STATUS) {  // a message is longer than expected
      for (const MPI_Status& status : statuses) require_success(status.MPI_ERROR);
    }
    require_success(code);
    return are_over != 0;
  });
  for (size_t i = 0; i < expected_.size(); ++i) {
    const auto [rank, wanted] = expected_[i];
    if (rank < 0) continue;
    int n = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &n);
    MINFER_REQUIRE(Peer, n == wanted, process_.name_of(rank), " has sent ", n, " bytes, expected ",
                   wanted, ": the ranks do not run the same command");
  }
}

void OpenMpiProcess::MpiCommunicator::all_reduce(Tensor x) {
  MINFER_CHECK(x.shape.rank == 2 && is_float(x.dtype), "all_reduce of ", x.dtype, ' ', x.shape);
  const int n = n_ranks(), next = (rank() + 1) % n, before = (rank() + n - 1) % n;
  for (int i = 0; i < ring_steps(n); ++i) {
    const RingStep step = ring_step(n, rank(), i);
    const Columns send = chunk_of(x, n, step.send), receive = chunk_of(x, n, step.receive);
    const auto n_send = static_cast<size_t>(send.n_bytes());
    const auto n_receive = static_cast<size_t>(receive.n_bytes());
    sent_.resize(std::max(sent_.size(), n_send));
    received_.resize(std::max(received_.size(), n_receive));
    copy(packed(send, sent_.data()), send);
    Transfers transfers(process_);
    transfers.receive(before, kReduce, std::span(received_).first(n_receive));
    transfers.send(next, kReduce, std::span(sent_).first(n_send));
    transfers.wait();
    const Columns chunk = packed(receive, received_.data());
    step.reduces ? add(receive, chunk) : copy(receive, chunk);
  }
}

bool OpenMpiProcess::MpiCommunicator::all_reduce_by(AllReduceKind kind, Tensor x, Tensor residual) {
  if (kind != AllReduceKind::Ring || residual) return false;
  all_reduce(x);
  return true;
}

void OpenMpiProcess::MpiCommunicator::all_gather(Tensor out, Tensor part, int64_t begin) {
  struct Place {
    int64_t begin, n;
  };
  const Columns own = columns_of(part, 0, part.shape[1]);  // which are all: they lie packed
  const std::span<const std::byte> bytes(own.data, static_cast<size_t>(own.n_bytes()));
  std::vector<Place> places(static_cast<size_t>(n_ranks()));
  Place& own_place = places[static_cast<size_t>(rank())] = {begin, own.n_columns};
  Transfers headers(process_), parts(process_);
  for (int other = 0; other < n_ranks(); ++other) {
    if (other == rank()) continue;
    headers.receive(other, kGatherPlace,
                    std::as_writable_bytes(std::span(places))
                        .subspan(static_cast<size_t>(other) * sizeof(Place), sizeof(Place)));
    headers.send(other, kGatherPlace, std::as_bytes(std::span(&own_place, 1)));
    parts.send(other, kGatherPart, bytes);
  }
  headers.wait();

  std::vector<Columns> targets;
  size_t n_bytes = 0;
  for (const Place& place : places) {
    targets.push_back(columns_of(out, place.begin, place.n));
    n_bytes += static_cast<size_t>(targets.back().n_bytes());
  }
  received_.resize(std::max(received_.size(), n_bytes));
  size_t at = 0;
  for (int other = 0; other < n_ranks(); ++other) {
    const auto n = static_cast<size_t>(targets[static_cast<size_t>(other)].n_bytes());
    if (other != rank()) parts.receive(other, kGatherPart, std::span(received_).subspan(at, n));
    at += n;
  }
  parts.wait();
  at = 0;
  for (int other = 0; other < n_ranks(); ++other) {
    const Columns& target = targets[static_cast<size_t>(other)];
    copy(target, other == rank() ? own : packed(target, received_.data() + at));
    at += static_cast<size_t>(target.n_bytes());
  }
}

std::string OpenMpiProcess::from_rank_0(std::string bytes) {
  uint64_t n = bytes.size();
  Transfers size(*this), content(*this);
  if (rank_ == 0) {
    for (int other = 1; other < n_ranks_; ++other) {
      size.send(other, kFromRank0Size, std::as_bytes(std::span(&n, 1)));
      content.send(other, kFromRank0, std::as_bytes(std::span(bytes)));
    }
  } else {
    size.receive(0, kFromRank0Size, std::as_writable_bytes(std::span(&n, 1)));
  }
  size.wait(kNoDeadline);
  if (rank_ != 0) {
    bytes.resize(n);
    content.receive(0, kFromRank0, std::as_writable_bytes(std::span(bytes)));
  }
  content.wait(kNoDeadline);
  return bytes;
}

template <typename Start>
void OpenMpiProcess::collective(Start start) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex_);
    require_success(start(&request));
  }
  poll(-1, kNoDeadline, [&] {
    int is_over = 0;
    require_success(MPI_Test(&request, &is_over, MPI_STATUS_IGNORE));
    return is_over != 0;
  });
}

int64_t OpenMpiProcess::sum(int64_t n) {
  int64_t result = 0;
  collective([&](MPI_Request* request) {
    return MPI_Iallreduce(&n, &result, 1, MPI_INT64_T, MPI_SUM, all_, request);
  });
  return result;
}

void OpenMpiProcess::finish() {
  collective([&](MPI_Request* request) { return MPI_Ibarrier(all_, request); });
  stop_thread();
  const Watchdog watchdog("left MPI within 2.5 s", kStartAndEnd);
  for (MPI_Request* const request : {&beat_in_, &beat_out_}) {
    if (*request == MPI_REQUEST_NULL) continue;
    if (request == &beat_in_) MPI_Cancel(request);
    MPI_Request_free(request);
  }
  MPI_Finalize();
}

void OpenMpiProcess::end_all(int exit_code) {
  // If the network is gone, MPI_Abort may wait in vain. mpirun ends the others then too, since one
  // process has ended with an error.
  std::thread([exit_code] {
    std::this_thread::sleep_for(milliseconds(500));
    ::_exit(exit_code);
  }).detach();
  const std::lock_guard lock(mutex_);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();
}

}  // namespace

std::unique_ptr<MpiProcess> start_mpi(const MpiOptions& options) {
  MINFER_REQUIRE(Usage, rank_of_mpirun() >= 0,
                 "--tp mpi: has to be started by mpirun: mpirun -n 2 minfer ...");
  return std::make_unique<OpenMpiProcess>(options);
}

}  // namespace minfer
