#include "worker/transfer/sliced_transport.h"

#include <algorithm>
#include <utility>

namespace refrain::worker {

void SlicedTransport::forget(PeerId peer) {
  drop(peer);
  for (Job& job : jobs_)
    if (job.peer == peer) job.error = kPeerGone;
}

void SlicedTransport::post(ReadId id, PeerId peer, std::vector<Read> reads) {
  jobs_.push_back({id, peer, std::move(reads), 0, ""});
}

void SlicedTransport::cancel(ReadId id) {
  for (Job& job : jobs_)
    if (job.id == id) job.error = kCancelled;
}

std::vector<Transport::Progress> SlicedTransport::poll(std::chrono::milliseconds) {
  if (jobs_.empty()) return {};
  Job& job = jobs_.front();
  const int64_t bytes = job.error.empty() ? read_slice(job) : 0;
  const bool ended = !job.error.empty() || job.next == job.reads.size();
  Progress progress{job.id, bytes, ended, std::move(job.error)};
  if (ended) {
    jobs_.pop_front();
  } else {
    std::rotate(jobs_.begin(), jobs_.begin() + 1, jobs_.end());  // all get on
  }
  return {std::move(progress)};
}

}  // namespace refrain::worker
