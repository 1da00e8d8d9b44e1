#include "worker/comm/host/host_communicator.h"

#include <exception>
#include <utility>

#include "runtime/base/log.h"
#include "worker/comm/host/collectives.h"

namespace refrain::worker {

HostCommunicator::HostCommunicator(std::shared_ptr<HostContext> context,
                                   std::unique_ptr<HostGroup> group)
    : context_(std::move(context)),
      group_(std::move(group)),
      users_(std::make_shared<const int>(0)) {
  context_->memory->reserve(bytes(), MemoryTag::kCollectives);
  if (group_ && group_->crowded()) context_->team.set_crowded(true);
}

HostCommunicator::~HostCommunicator() {
  if (users_.use_count() > 1) {
    // A later replay would write into memory that is gone; on CUDA this order hangs.
    log::critical("communicator of rank {} destroyed before {} graphs that use it", rank(),
                  users_.use_count() - 1);
    std::terminate();
  }
  context_->memory->release(bytes(), MemoryTag::kCollectives);
}

HostStream& HostCommunicator::recording_on(Stream& stream) {
  auto& host = static_cast<HostStream&>(stream);
  host.hold(users_);
  return host;
}

void HostCommunicator::all_reduce(Stream& stream, kernels::Matrix data, int64_t cols,
                                  kernels::Rows rows) {
  REFRAIN_CHECK(data.dtype == DType::kFloat32 || data.dtype == DType::kBFloat16,
                "all_reduce sums float32 or bfloat16, not {}", refrain::to_string(data.dtype));
  HostStream& host = recording_on(stream);
  if (!group_) return;
  ExchangeArgs args;
  args.group = group_.get();
  args.collective = Collective::kAllReduce;
  args.data = data;
  args.rows = rows.padded;
  args.cols = cols;
  args.whole = rows;
  launch_exchanges(host.ref(), args);
}

void HostCommunicator::all_gather(Stream& stream, kernels::Matrix in, void* out, int64_t cols,
                                  kernels::Rows rows) {
  HostStream& host = recording_on(stream);
  const auto row_bytes = cols * static_cast<int64_t>(size_of(in.dtype));
  if (!group_) {
    for (int32_t row = 0; row < rows.padded; ++row) {
      host.copy(static_cast<std::byte*>(out) + row * row_bytes,
                static_cast<const std::byte*>(in.data) +
                    row * in.stride * static_cast<int64_t>(size_of(in.dtype)),
                static_cast<size_t>(row_bytes));
    }
    return;
  }
  ExchangeArgs args;
  args.group = group_.get();
  args.collective = Collective::kAllGather;
  args.data = in;
  args.out = static_cast<std::byte*>(out);
  args.out_row_bytes = row_bytes;
  args.out_rank_bytes = row_bytes * rows.padded;
  args.rows = rows.padded;
  args.cols = cols;
  args.whole = rows;
  launch_exchanges(host.ref(), args);
}

// A sum after the other, each for one rank, which alone takes it.
void HostCommunicator::reduce_scatter(Stream& stream, kernels::Matrix in, kernels::Matrix out,
                                      int64_t cols, int32_t rows) {
  REFRAIN_CHECK(in.dtype == out.dtype && in.stride == cols && out.stride == cols &&
                    (in.dtype == DType::kFloat32 || in.dtype == DType::kBFloat16),
                "reduce_scatter sums rows of float32 or bfloat16 without gaps");
  HostStream& host = recording_on(stream);
  const int64_t part = rows * cols * static_cast<int64_t>(size_of(in.dtype));
  if (!group_) return host.copy(out.data, in.data, static_cast<size_t>(part));
  for (int rank = 0; rank < size(); ++rank) {
    ExchangeArgs args;
    args.group = group_.get();
    args.collective = Collective::kReduceScatter;
    args.root = rank;
    args.data = in;
    args.data.data = static_cast<std::byte*>(in.data) + rank * part;
    args.out = static_cast<std::byte*>(out.data);
    args.out_row_bytes = cols * static_cast<int64_t>(size_of(in.dtype));
    args.rows = rows;
    args.cols = cols;
    args.whole = {rows, nullptr};
    launch_exchanges(host.ref(), args);
  }
}

void HostCommunicator::broadcast(Stream& stream, void* data, size_t bytes, int root) {
  REFRAIN_CHECK(root >= 0 && root < size(), "broadcast root {} is not a rank of {}", root, size());
  HostStream& host = recording_on(stream);
  if (!group_) return;
  ExchangeArgs args;
  args.group = group_.get();
  args.collective = Collective::kBroadcast;
  args.root = root;
  args.cols = static_cast<int64_t>(bytes);
  args.data = {data, DType::kUInt8, args.cols};
  args.rows = 1;
  args.whole = {1, nullptr};
  launch_exchanges(host.ref(), args);
}

void HostCommunicator::barrier() {
  context_->refuse_in_capture("barrier");
  if (group_) group_->meet({});
}

void HostCommunicator::hold_to_sum_way(const std::string& way) {
  REFRAIN_CHECK(way.empty() || way == "exchange", "the host device sums by exchange, not by {}",
                way);
}

std::unique_ptr<Buffer> HostCommunicator::next_rank_memory(size_t bytes) {
  context_->refuse_in_capture("next_rank_memory");
  return make_host_buffer(context_->memory, bytes, MemoryTag::kCollectives);
}

}  // namespace refrain::worker
