#pragma once
// The seam of collectives, as worker/device is that of memory and streams: one implementation in
// host/, one in cuda/. Device thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ipc/protocol/rank_address.h"
#include "kernels/core/kernel_table.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"

namespace refrain::worker {

// Tells the other ranks where this one is, and gives where all are, by rank.
using MeetFn = std::function<Result<std::vector<ipc::RankAddress>>(const ipc::RankAddress& mine)>;

// A group as one of its ranks joins it.
struct GroupOptions {
  std::string token;  // names it: equal on all ranks, fresh for each life of the group
  int rank = 0;
  int size = 1;
  int timeout_ms = 0;          // of joining and of every collective
  MeetFn meet = {};            // null: all ranks share this one's memory
  std::string listen_on = {};  // tcp://host:port for ranks that do not; empty: there are none
  StopFn stop = {};            // while the ranks come together; null: never
};

// Collectives of one tensor-parallel group, or of replicas that step together; recordable. One
// communicator per concurrent stream. On the host they run over shared memory or tcp, on CUDA over
// NCCL and peer memory. Ranks that disagree on the operation, or a rank that does not come, end in
// a DeviceError that names them.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // data = sum over ranks of data, summed in rank order in float32: equal bits on every rank.
  // rows.live is honoured where the device can.
  virtual void all_reduce(Stream& stream, kernels::Matrix data, int64_t cols,
                          kernels::Rows rows) = 0;
  // delta = sum over ranks of delta, then add_rms_norm, bit for bit as the two after each other.
  // False, and nothing done: not as one operation here, or not for such rows. sent: the launch
  // before it was a linear that has sent delta to sent_rows(), where that is anywhere.
  virtual bool all_reduce_add_rms_norm(Stream& /*stream*/, const kernels::AddRmsNormArgs& /*args*/,
                                       bool /*sent*/ = false) {
    return false;
  }
  // Where a linear sends such a delta itself; size 0: nowhere, it writes its result as ever.
  virtual kernels::PeerPackets sent_rows(int32_t /*rows*/, int64_t /*cols*/) const { return {}; }
  // out[i] = rank i's `in`: [size][rows.padded][cols] from [rows.padded][cols], contiguous.
  virtual void all_gather(Stream& stream, kernels::Matrix in, void* out, int64_t cols,
                          kernels::Rows rows) = 0;
  // out = sum over ranks of this rank's part of `in`: [rows][cols] from [size][rows][cols], both
  // without gaps. In rank order in float32 where the device can.
  virtual void reduce_scatter(Stream& stream, kernels::Matrix in, kernels::Matrix out, int64_t cols,
                              int32_t rows) = 0;
  virtual void broadcast(Stream& stream, void* data, size_t bytes, int root) = 0;
  // Sums that kernels make among themselves (kernels::PeerSum): memory for `places` of them, of
  // rows of `cols` columns, made by all ranks together before anything is recorded; then the place
  // that a launch uses. Only where the kernel table says few_rows.max_ranks.
  virtual void reserve_peer_sums(int32_t /*places*/, int64_t /*cols*/) {
    throw DeviceError("this communicator has no peer sums");
  }
  virtual kernels::PeerSum peer_sum(Stream& /*stream*/, int32_t /*place*/, kernels::Rows /*rows*/) {
    throw DeviceError("this communicator has no peer sums");
  }
  // Whether sums of so many bytes are made in rank order; else an element's bits may depend on
  // where among the others it lies.
  virtual bool sums_in_rank_order(size_t /*bytes*/) const { return true; }
  virtual void barrier() = 0;  // host-side, outside of capture
  virtual size_t bytes() const = 0;
  // Whether sums go by NCCL alone from now on, which every rank asks alike
  // (--disable-custom-all-reduce); false: there is no NCCL here.
  virtual bool use_nccl_alone() { return false; }
};

}  // namespace refrain::worker
