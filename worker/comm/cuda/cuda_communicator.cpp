#include "worker/comm/cuda/cuda_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include "runtime/base/log.h"

namespace refrain::worker {

namespace {

constexpr size_t kMostExchanges = 4;           // of one sum or gather; NCCL takes larger ones
constexpr size_t kMostOptionalExchanges = 16;  // of a gather with a live count
constexpr const char* kExchange = "exchange";

// Memory of this rank that its peers have opened, and theirs: data() is the next rank's.
class NextRankMemory final : public Buffer {
 public:
  NextRankMemory(std::shared_ptr<CudaContext> context, HostGroup& group, size_t bytes)
      : context_(std::move(context)),
        rank_(group.rank()),
        size_(group.size()),
        own_(make_cuda_buffer(context_, bytes, MemoryTag::kCollectives)) {
    open_peers(*context_, group, own_->data(), addresses_);
  }
  ~NextRankMemory() override { close_peers(*context_, rank_, size_, addresses_); }
  void* data() const override { return addresses_[(rank_ + 1) % size_]; }
  size_t bytes() const override { return own_->bytes(); }

 private:
  std::shared_ptr<CudaContext> context_;
  int rank_, size_;
  std::unique_ptr<Buffer> own_;
  void* addresses_[kMaxPeers] = {};
};

ncclDataType_t nccl_type(DType dtype) {
  return dtype == DType::kBFloat16 ? ncclBfloat16 : ncclFloat32;
}

}  // namespace

CudaCommunicator::CudaCommunicator(std::shared_ptr<CudaContext> context, GroupOptions options)
    : context_(std::move(context)),
      options_(std::move(options)),
      users_(std::make_shared<const int>(0)) {}

Result<std::unique_ptr<Communicator>> CudaCommunicator::join(std::shared_ptr<CudaContext> context,
                                                             const GroupOptions& options) {
  std::unique_ptr<CudaCommunicator> communicator(new CudaCommunicator(std::move(context), options));
  if (options.size != 1 || options.rank != 0) {
    REFRAIN_RETURN_IF_ERROR(communicator->connect());
  }
  return communicator;
}

Status CudaCommunicator::connect() {
  if (options_.size > kMaxPeers) {
    return fail(ErrorCode::kInvalidArgument, "a group of GPUs has 1 to {} ranks, not {}", kMaxPeers,
                options_.size);
  }
  REFRAIN_ASSIGN_OR_RETURN(group_, join_group(options_, 1));
  if (!group_->shares_memory()) {
    return fail_field(
        "tensor-parallel-size",
        "the GPUs of one group are those of one host with one /dev/shm: they sum over "
        "peer memory; over several hosts, serve on --device host");
  }
  const size_t before = context_->memory().free;
  REFRAIN_RETURN_IF_ERROR(connect_nccl());
  const size_t after = context_->memory().free;
  nccl_bytes_ = before > after ? before - after : 0;
  context_->add_memory(nccl_bytes_, MemoryTag::kCollectives);
  peers_ = std::make_unique<PeerMemory>(context_, *group_, options_.timeout_ms);
  context_->add_watch(this);
  return {};
}

Status CudaCommunicator::connect_nccl() {
  REFRAIN_ASSIGN_OR_RETURN(nccl_, NcclLibrary::load());
  ncclUniqueId id{};
  if (options_.rank == 0) check(nccl_->get_unique_id(&id), "ncclGetUniqueId");
  std::vector<ncclUniqueId> ids(static_cast<size_t>(options_.size));
  exchange_bytes(*group_, &id, sizeof id, ids.data());
  // One GPU for two ranks is the commonest mistake; NCCL says it less clearly.
  char bus[32] = {};
  context_->check(cudaDeviceGetPCIBusId(bus, sizeof bus, context_->device()),
                  "cudaDeviceGetPCIBusId");
  std::vector<std::array<char, sizeof bus>> buses(static_cast<size_t>(options_.size));
  exchange_bytes(*group_, bus, sizeof bus, buses.data());
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank && std::string(buses[static_cast<size_t>(rank)].data()) == bus) {
      return fail_field("rank", "ranks {} and {} both use the GPU at {}; every rank needs its own",
                        options_.rank, rank, bus);
    }
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  const ncclResult_t status =
      nccl_->init_rank(&comm_, options_.size, ids[0], options_.rank, &config);
  if (status != ncclSuccess) {
    return fail(ErrorCode::kInternal, "NCCL {} made no group of {} ranks: {} ({})", nccl_->version,
                options_.size, nccl_->error_string(status), nccl_->last_error(nullptr));
  }
  log::info("group of {} GPUs: NCCL {}.{}.{} ({}), sums and gathers up to {} KiB over peer memory",
            options_.size, nccl_->version / 10000, nccl_->version / 100 % 100, nccl_->version % 100,
            nccl_->path, kMostExchanges * kExchangeBytes >> 10);
  return {};
}

CudaCommunicator::~CudaCommunicator() {
  if (users_.use_count() > 1 && !context_->abandoned()) {
    // NCCL waits for ever when it is destroyed before graphs that hold its operations.
    log::critical("communicator of rank {} destroyed before {} graphs that use it", rank(),
                  users_.use_count() - 1);
    std::terminate();
  }
  context_->remove_watch(this);
  context_->drop_memory(nccl_bytes_, MemoryTag::kCollectives);
  if (comm_ != nullptr && !context_->abandoned()) nccl_->destroy(comm_);
}

void CudaCommunicator::check(ncclResult_t status, const char* call) {
  if (status == ncclSuccess) [[likely]]
    return;
  throw DeviceError(fmt::format("{} on rank {}: {} ({})", call, options_.rank,
                                nccl_->error_string(status), nccl_->last_error(comm_)));
}

// What is noted is what ranks must agree on; their other kernels may differ with their shards.
CudaStream& CudaCommunicator::recording_on(Stream& stream, const Post& post) {
  auto& cuda = static_cast<CudaStream&>(stream);
  cuda.hold(users_);
  cuda.note_collective(describe(post));
  return cuda;
}

bool CudaCommunicator::exchanges(const kernels::Matrix& data, size_t bytes, size_t most) const {
  return way_ != kNcclWay && bytes <= most * kExchangeBytes &&
         (data.dtype == DType::kFloat32 || data.dtype == DType::kBFloat16) &&
         reinterpret_cast<uintptr_t>(data.data) % kThreadBytes == 0;
}

void CudaCommunicator::all_reduce(Stream& stream, kernels::Matrix data, int64_t cols,
                                  kernels::Rows rows) {
  REFRAIN_CHECK(data.dtype == DType::kFloat32 || data.dtype == DType::kBFloat16,
                "all_reduce sums float32 or bfloat16, not {}", refrain::to_string(data.dtype));
  CudaStream& cuda =
      recording_on(stream, {Collective::kAllReduce, data.dtype, -1,
                            static_cast<uint64_t>(rows.padded), static_cast<uint64_t>(cols)});
  if (!group_) return;
  REFRAIN_CHECK(data.stride == cols || rows.padded == 1,
                "all_reduce takes rows without gaps, not {} of {}", cols, data.stride);
  const auto count = static_cast<size_t>(cols * rows.padded);
  const size_t bytes = count * size_of(data.dtype);
  context_->note("all_reduce");
  if (bytes == 0) return;
  if (exchanges(data, bytes, kMostExchanges)) {
    for (size_t begin = 0; begin < bytes; begin += kExchangeBytes) {
      launch_peer_all_reduce(cuda.ref(), peers_->exchange(),
                             static_cast<std::byte*>(data.data) + begin, data.dtype,
                             std::min(kExchangeBytes, bytes - begin));
    }
    return;
  }
  REFRAIN_CHECK(way_ != kExchange, "a sum of {} bytes cannot be made by exchange", bytes);
  check(nccl_->all_reduce(data.data, data.data, count, nccl_type(data.dtype), ncclSum, comm_,
                          cuda.native()),
        "ncclAllReduce");
}

bool CudaCommunicator::all_reduce_add_rms_norm(Stream& stream, const kernels::AddRmsNormArgs& args,
                                               bool sent) {
  const bool of_sent = sent && sent_rows(args.rows.padded, args.cols).size > 0;
  if (!group_ || way_ == kNcclWay || !can_peer_add_rms_norm(args)) {
    REFRAIN_CHECK(!of_sent, "rows were sent that no sum takes");
    return false;
  }
  CudaStream& cuda = recording_on(
      stream, {Collective::kAllReduce, args.delta.dtype, -1,
               static_cast<uint64_t>(args.rows.padded), static_cast<uint64_t>(args.cols)});
  context_->note("all_reduce_add_rms_norm");
  if (args.rows.padded == 0) return true;
  const auto launch = of_sent ? launch_peer_add_rms_norm_sent : launch_peer_add_rms_norm;
  launch(cuda.ref(), peers_->exchange(), args);
  return true;
}

kernels::PeerPackets CudaCommunicator::sent_rows(int32_t rows, int64_t cols) const {
  if (!group_ || way_ == kNcclWay) return {};
  return worker::sent_rows(peers_->exchange(), rows, cols);
}

void CudaCommunicator::all_gather(Stream& stream, kernels::Matrix in, void* out, int64_t cols,
                                  kernels::Rows rows) {
  CudaStream& cuda =
      recording_on(stream, {Collective::kAllGather, in.dtype, -1,
                            static_cast<uint64_t>(rows.padded), static_cast<uint64_t>(cols)});
  const size_t row_bytes = static_cast<size_t>(cols) * size_of(in.dtype);
  const auto count = static_cast<size_t>(rows.padded);
  context_->note("all_gather");
  if (count * row_bytes == 0) return;
  if (!group_) {
    context_->check(cudaMemcpy2DAsync(out, row_bytes, in.data,
                                      static_cast<size_t>(in.stride) * size_of(in.dtype), row_bytes,
                                      count, cudaMemcpyDeviceToDevice, cuda.native()),
                    "cudaMemcpy2DAsync");
    return;
  }
  REFRAIN_CHECK(in.stride == cols || rows.padded == 1,
                "all_gather takes rows without gaps, not {} of {}", cols, in.stride);
  // A gather that most steps do without is made by kernels that then end at once; NCCL's would not.
  const size_t most = rows.live == nullptr ? kMostExchanges : kMostOptionalExchanges;
  if (exchanges(in, count * row_bytes, most)) {
    for (size_t begin = 0; begin < count * row_bytes; begin += kExchangeBytes) {
      launch_peer_all_gather(
          cuda.ref(), peers_->exchange(), static_cast<const std::byte*>(in.data) + begin,
          static_cast<std::byte*>(out) + begin, std::min(kExchangeBytes, count * row_bytes - begin),
          count * row_bytes, {rows.live, row_bytes, begin});
    }
    return;
  }
  check(nccl_->all_gather(in.data, out, count * row_bytes, ncclUint8, comm_, cuda.native()),
        "ncclAllGather");
}

void CudaCommunicator::reduce_scatter(Stream& stream, kernels::Matrix in, kernels::Matrix out,
                                      int64_t cols, int32_t rows) {
  REFRAIN_CHECK(in.dtype == out.dtype && in.stride == cols && out.stride == cols &&
                    (in.dtype == DType::kFloat32 || in.dtype == DType::kBFloat16),
                "reduce_scatter sums rows of float32 or bfloat16 without gaps");
  CudaStream& cuda =
      recording_on(stream, {Collective::kReduceScatter, in.dtype, -1, static_cast<uint64_t>(rows),
                            static_cast<uint64_t>(cols)});
  context_->note("reduce_scatter");
  const auto count = static_cast<size_t>(rows * cols);
  if (count == 0) return;
  if (!group_) {
    context_->check(cudaMemcpyAsync(out.data, in.data, count * size_of(in.dtype),
                                    cudaMemcpyDeviceToDevice, cuda.native()),
                    "cudaMemcpyAsync");
    return;
  }
  check(nccl_->reduce_scatter(in.data, out.data, count, nccl_type(in.dtype), ncclSum, comm_,
                              cuda.native()),
        "ncclReduceScatter");
}

void CudaCommunicator::broadcast(Stream& stream, void* data, size_t bytes, int root) {
  REFRAIN_CHECK(root >= 0 && root < size(), "broadcast root {} is not a rank of {}", root, size());
  CudaStream& cuda = recording_on(stream, {Collective::kBroadcast, DType::kUInt8, root, 1, bytes});
  context_->note("broadcast");
  if (!group_ || bytes == 0) return;
  check(nccl_->broadcast(data, data, bytes, ncclUint8, root, comm_, cuda.native()),
        "ncclBroadcast");
}

void CudaCommunicator::reserve_peer_sums(int32_t places, int64_t cols) {
  if (group_ == nullptr) return;
  sums_ = std::make_unique<PeerSumMemory>(context_, *group_, peers_->exchange(), places, cols);
}

kernels::PeerSum CudaCommunicator::peer_sum(Stream& stream, int32_t place, kernels::Rows rows) {
  REFRAIN_CHECK(sums_ != nullptr, "a peer sum before reserve_peer_sums");
  recording_on(stream, {Collective::kAllReduce, DType::kBFloat16, place,
                        static_cast<uint64_t>(rows.padded), static_cast<uint64_t>(sums_->cols())});
  context_->note("peer_sum");
  return sums_->place(place);
}

void CudaCommunicator::barrier() {
  context_->refuse_in_capture("barrier");
  if (group_) group_->meet({});
}

bool CudaCommunicator::use_nccl_alone() {
  way_ = kNcclWay;
  return true;
}

bool CudaCommunicator::sums_in_rank_order(size_t bytes) const {
  return !group_ || (way_ != kNcclWay && bytes <= kMostExchanges * kExchangeBytes);
}

std::vector<std::string> CudaCommunicator::sum_ways(size_t bytes) const {
  if (bytes > kMostExchanges * kExchangeBytes) return {kNcclWay};
  return {kExchange, kNcclWay};
}

void CudaCommunicator::hold_to_sum_way(const std::string& way) {
  REFRAIN_CHECK(way.empty() || way == kExchange || way == kNcclWay,
                "GPUs sum and gather by {} or {}, not by {}", kExchange, kNcclWay, way);
  way_ = way;
}

std::unique_ptr<Buffer> CudaCommunicator::next_rank_memory(size_t bytes) {
  context_->refuse_in_capture("next_rank_memory");
  if (!group_) return make_cuda_buffer(context_, bytes, MemoryTag::kCollectives);
  return std::make_unique<NextRankMemory>(context_, *group_, bytes);
}

void CudaCommunicator::look(std::chrono::steady_clock::duration waited) {
  look_after();
  if (const std::string missing = group_->find_missing(); !missing.empty()) give_up(missing);
  if (waited > std::chrono::milliseconds(options_.timeout_ms)) {
    give_up(fmt::format("what the ranks do together has not ended within {} ms; a rank may hang",
                        options_.timeout_ms));
  }
}

void CudaCommunicator::look_after() {
  const uint32_t verdict = peers_->verdict();
  if (verdict == 0) return;
  if (const std::string missing = group_->find_missing(); !missing.empty()) give_up(missing);
  give_up(verdict == kAbort ? "an exchange was stopped"
                            : fmt::format("rank {} did not come to an exchange within {} ms",
                                          verdict - 1, options_.timeout_ms));
}

// Our own kernels end at their next look. NCCL's never do by themselves: where it cannot revoke,
// what is queued is left to the end of the process.
void CudaCommunicator::give_up(const std::string& reason) {
  peers_->abort();
  context_->remove_watch(this);
  const bool revoked = nccl_->revoke != nullptr && nccl_->revoke(comm_, /*flags=*/0) == ncclSuccess;
  if (!revoked) log::warn("NCCL operations of a broken group are left to the end of the process");
  context_->abandon();
  throw DeviceError(reason);
}

}  // namespace refrain::worker
