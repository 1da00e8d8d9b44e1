#include "worker/transfer/device_memory.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace refrain::worker {
namespace {

constexpr size_t kMostReads = 16384,
                 kMostBytes = 256 << 20;  // between two looks at what else there is

bool follows(const ipc::KvPiece& last, const ipc::KvPiece& next) {
  return last.descriptor >= 0 && next.descriptor >= 0 && last.address + last.bytes == next.address;
}

}  // namespace

std::unique_ptr<DeviceMemory> DeviceMemory::make(const Share& share, const KvMemory& own,
                                                 Copier& copier) {
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(copier));
  const auto add = [&](const std::byte* region, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(region);
    memory->regions_.push_back(address);
    const bool known = std::ranges::any_of(memory->pieces_, [&](const SharedPiece& piece) {
      return piece.address <= address && address + bytes <= piece.address + piece.bytes;
    });
    if (known) return true;
    std::vector<SharedPiece> pieces = share(region, bytes);
    if (pieces.empty()) return false;
    std::ranges::move(pieces, std::back_inserter(memory->pieces_));
    return true;
  };
  const std::vector<std::byte*> regions = own.all_regions();
  const std::vector<size_t> sizes = region_sizes(own.states, own.flags != nullptr);
  for (size_t i = 0; i < regions.size(); ++i)
    if (!add(regions[i], sizes[i])) return nullptr;
  std::ranges::sort(memory->pieces_, {}, &SharedPiece::address);
  let_siblings_read();
  return memory;
}

void DeviceMemory::describe(ipc::KvExport& own) const {
  describe_process(regions_, own);
  for (const SharedPiece& piece : pieces_)
    own.pieces.push_back({piece.address, piece.bytes, piece.descriptor.get(), piece.words});
}

// The descriptors of the other process are taken for as long as it takes to map them.
Status DeviceMemory::map_run(int pidfd, std::span<const ipc::KvPiece> run, Peer& peer) {
  std::vector<SharedPiece> pieces;
  for (const ipc::KvPiece& told : run) {
    SharedPiece piece{told.address, told.bytes, UniqueFd(), told.words};
    if (told.descriptor >= 0) {
      piece.descriptor.reset(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, told.descriptor, 0)));
      if (!piece.descriptor)
        return fail(ErrorCode::kUnavailable, "descriptors of its process cannot be taken: {}",
                    std::strerror(errno));
    }
    pieces.push_back(std::move(piece));
  }
  Mapping mapping{run.front().address, run.back().address + run.back().bytes - run.front().address,
                  nullptr};
  REFRAIN_ASSIGN_OR_RETURN(mapping.memory, copier_.map(pieces));
  peer.mappings.push_back(std::move(mapping));
  return {};
}

Status DeviceMemory::import(PeerId id, const ipc::KvExport& other) {
  if (other.pieces.empty())
    return fail(ErrorCode::kUnavailable, "its blocks are in no device memory that can be mapped");
  // Before it is asked whose it is: the descriptor stays that process's.
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, other.pid, 0)));
  REFRAIN_RETURN_IF_ERROR(check_process(other));
  if (!pidfd) return fail(ErrorCode::kUnavailable, "its process has ended");
  Peer peer;
  for (auto first = other.pieces.begin(); first != other.pieces.end();) {
    auto end = first + 1;
    while (end != other.pieces.end() && follows(*(end - 1), *end)) ++end;
    REFRAIN_RETURN_IF_ERROR(map_run(pidfd.get(), {first, end}, peer));
    first = end;
  }
  const std::vector<size_t> sizes = region_sizes(other.states, other.layer_flags);
  if (other.layer_flags) peer.flags = sizes.size() - 1;
  if (sizes.size() != other.regions.size())
    return fail(ErrorCode::kUnavailable, "it tells of {} regions and has {}", other.regions.size(),
                sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t region = other.regions[i], end = region + sizes[i];
    const auto mapping = std::ranges::find_if(peer.mappings, [&](const Mapping& one) {
      return one.address <= region && end <= one.address + one.bytes;
    });
    if (mapping == peer.mappings.end())
      return fail(ErrorCode::kUnavailable, "a region of its blocks is in none of its pieces");
    peer.regions.push_back(mapping->memory->data() + (region - mapping->address));
  }
  peers_[id] = std::move(peer);
  return {};
}

int64_t DeviceMemory::read_slice(Job& job) {
  const auto found = peers_.find(job.peer);
  if (found == peers_.end()) {
    job.error = kPeerGone;
    return 0;
  }
  const Peer& peer = found->second;
  std::vector<CopyPiece> pieces;
  size_t bytes = 0;
  for (; job.next < job.reads.size() && pieces.size() < kMostReads && bytes < kMostBytes;
       ++job.next) {
    const Read& read = job.reads[job.next];
    const std::byte* from = peer.regions.at(read.region) + read.offset;
    bytes += read.bytes;
    if (read.region == peer.flags) {
      copier_.copy_words(read.to, from, read.bytes);
    } else {
      pieces.push_back({read.to, from, read.bytes});
    }
  }
  copier_.copy_all(pieces);
  copier_.finish();
  return static_cast<int64_t>(bytes);
}

}  // namespace refrain::worker
