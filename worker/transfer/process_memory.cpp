#include "worker/transfer/process_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace refrain::worker {
namespace {

constexpr size_t kSliceReads = 512,
                 kSliceBytes = 4 << 20;  // between two looks at what else there is

// In another process.
void* address_of(uint64_t there) {
  return reinterpret_cast<void*>(there);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

ProcessMemory::ProcessMemory(const KvMemory& own) {
  for (const std::byte* region : own.all_regions())
    regions_.push_back(reinterpret_cast<uintptr_t>(region));
  let_siblings_read();
}

void ProcessMemory::describe(ipc::KvExport& own) const { describe_process(regions_, own); }

Status ProcessMemory::import(PeerId peer, const ipc::KvExport& other) {
  if (other.regions.empty())
    return fail(ErrorCode::kUnavailable, "its blocks are not in memory of its process");
  REFRAIN_RETURN_IF_ERROR(check_process(other));
  std::byte probe{};
  const iovec local{&probe, 1};
  const iovec remote{address_of(other.regions.front()), 1};
  if (process_vm_readv(static_cast<pid_t>(other.pid), &local, 1, &remote, 1, 0) != 1)
    return fail(ErrorCode::kUnavailable, "its memory cannot be read: {}", std::strerror(errno));
  peers_[peer] = {static_cast<pid_t>(other.pid), other.regions};
  return {};
}

int64_t ProcessMemory::read_slice(Job& job) {
  const auto found = peers_.find(job.peer);
  if (found == peers_.end()) {
    job.error = kPeerGone;
    return 0;
  }
  std::array<iovec, kSliceReads> local, remote;
  size_t count = 0, bytes = 0;
  for (; job.next < job.reads.size() && count < kSliceReads && bytes < kSliceBytes; ++job.next) {
    const Read& read = job.reads[job.next];
    local[count] = {read.to, read.bytes};
    remote[count] = {address_of(found->second.regions.at(read.region) + read.offset), read.bytes};
    bytes += read.bytes;
    ++count;
  }
  const ssize_t got =
      process_vm_readv(found->second.pid, local.data(), count, remote.data(), count, 0);
  if (got == static_cast<ssize_t>(bytes)) return got;
  job.error = fmt::format("the memory of process {} cannot be read: {}", found->second.pid,
                          got < 0 ? std::strerror(errno) : "a part of it is gone");
  return 0;
}

}  // namespace refrain::worker
