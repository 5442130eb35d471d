#include "kernels/cuda/comm/peer_copies.h"

#include "kernels/cuda/launchers.h"

namespace minfer::cuda {

PeerCopies::PeerCopies(int card, cudaStream_t stream)
    : card_(card), stream_(stream), copies_(make_stream()) {
  for (Part& part : parts_) {
    for (int half = 0; half < 2; ++half) {
      part.made[size_t(half)] = make_event_without_time();
      part.arrived[size_t(half)] = make_event_without_time();
    }
  }
  for (Event& event : added_) event = make_event_without_time();
}

void PeerCopies::reserve(int64_t n_elements) {
  DeviceTensor* const all[] = {&parts_[0].rows, &parts_[1].rows, &inbox_};
  for (DeviceTensor* memory : all) *memory = {};
  for (DeviceTensor* memory : all) *memory = allocate_device(DType::F16, {n_elements});
}

void PeerCopies::synchronize() {
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(copies_.get()));
}

void PeerCopies::sum(const MadeSum& sum, int rank, const PeerCopies& peer,
                     const std::function<void()>& meet) {
  const int64_t n_rows = sum.residual.shape[0], n = sum.residual.shape[1];
  struct Half {
    int64_t begin, n_rows;
  };
  // Whole tiles of a GEMM in the first half.
  const int64_t middle = align_up(n_rows / 2, 128);
  const Half halves[] = {{0, middle}, {middle, n_rows - middle}};
  const size_t turn = size_t(n_sums_++ % 2);
  Part& own = parts_[turn];
  const Part& other = peer.parts_[turn];
  const auto rows_of = [&](const DeviceTensor& memory, const Half& half) {
    return Tensor{memory.view().data, sum.normed.dtype, {n_rows, n}}.rows(half.begin, half.n_rows);
  };
  // The other rank has copied what the sum before the last one left here.
  for (const Event& event : other.arrived) {
    MINFER_CUDA_CHECK(cudaStreamWaitEvent(stream_, event.get()));
  }
  for (size_t h = 0; h < 2; ++h) {
    sum.make(rows_of(own.rows, halves[h]), halves[h].begin);
    MINFER_CUDA_CHECK(cudaEventRecord(own.made[h].get(), stream_));
  }
  meet();  // the other rank has recorded its events
  // What the sum before left in the inbox has been added.
  for (const Event& event : added_) {
    MINFER_CUDA_CHECK(cudaStreamWaitEvent(copies_.get(), event.get()));
  }
  for (size_t h = 0; h < 2; ++h) {
    const Tensor to = rows_of(inbox_, halves[h]), from = rows_of(other.rows, halves[h]);
    MINFER_CUDA_CHECK(cudaStreamWaitEvent(copies_.get(), other.made[h].get()));
    MINFER_CUDA_CHECK(cudaMemcpyPeerAsync(to.data, card_, from.data, peer.card_,
                                          size_t(from.n_bytes()), copies_.get()));
    MINFER_CUDA_CHECK(cudaEventRecord(own.arrived[h].get(), copies_.get()));
  }
  for (size_t h = 0; h < 2; ++h) {
    const auto half_of = [&](const Tensor& t) { return t.rows(halves[h].begin, halves[h].n_rows); };
    const Tensor own_part = rows_of(own.rows, halves[h]), more = rows_of(inbox_, halves[h]);
    const Tensor first = rank == 0 ? own_part : more, second = rank == 0 ? more : own_part;
    MINFER_CUDA_CHECK(cudaStreamWaitEvent(stream_, own.arrived[h].get()));
    add_parts_rms_norm(stream_, half_of(sum.normed), half_of(sum.residual), first, second,
                       sum.weight, sum.eps);
    MINFER_CUDA_CHECK(cudaEventRecord(added_[h].get(), stream_));
  }
}

}  // namespace minfer::cuda
