#include "worker/transfer/sliced_transport.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/process_identity.h"

namespace refrain::worker {

void SlicedTransport::describe_process(const std::vector<uint64_t>& regions, ipc::KvExport& own) {
  const ProcessIdentity process = own_process();
  own.realm = process.realm;
  own.pid = process.pid;
  own.process_start = process.start;
  own.regions = regions;
}

void SlicedTransport::let_siblings_read() {
  prctl(PR_SET_PTRACER, static_cast<unsigned long>(getppid()), 0, 0, 0);
}

Status SlicedTransport::check_process(const ipc::KvExport& other) {
  const ProcessIdentity process{other.realm, other.pid, other.process_start};
  if (!process.same_realm(own_process()))
    return fail(ErrorCode::kUnavailable, "its process is on another machine or in a container");
  if (process_start(process.pid) != process.start)
    return fail(ErrorCode::kUnavailable, "its process has ended");
  return {};
}

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
