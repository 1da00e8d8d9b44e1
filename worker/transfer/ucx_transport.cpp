#include "worker/transfer/ucx_transport.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "worker/transfer/read_plan.h"

namespace refrain::worker {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20, kPiecesUnderWay = 16;  // of a job
constexpr size_t kBytesAtOnce = 64 << 20;                              // begun in a poll
constexpr int kTurns = 256;  // of UCX's work between two looks at what else there is
constexpr Duration kCloses = std::chrono::seconds(10);  // a connection, at most

// That has these bytes of a rank's; null: none has them all.
const ipc::KvUcxMemory* memory_of(const ipc::KvUcx& told, uint64_t address, size_t bytes) {
  for (const ipc::KvUcxMemory& memory : told.memory)
    if (memory.address <= address && address + bytes <= memory.address + memory.bytes)
      return &memory;
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<UcxTransport>> UcxTransport::open(const KvMemory& own, bool on_gpu) {
  REFRAIN_ASSIGN_OR_RETURN(auto library, UcxLibrary::load());
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(library)));
  REFRAIN_RETURN_IF_ERROR(transport->start(own, on_gpu));
  return transport;
}

Status UcxTransport::start(const KvMemory& own, bool on_gpu) {
  const auto failed = [&](const char* what, ucs_status_t status) {
    return fail(ErrorCode::kUnavailable, "UCX ({}) cannot {}: {}", ucx_->path, what, text(status));
  };
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  ucs_status_t status =
      ucx_->init(UCP_API_MAJOR, UCP_API_MINOR, &params, /*config=*/nullptr, &context_);
  if (status != UCS_OK) return failed("start", status);
  if (on_gpu) {
    ucp_context_attr_t attributes{};
    attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    status = ucx_->context_query(context_, &attributes);
    if (status != UCS_OK || (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0)
      return fail(ErrorCode::kNotFound,
                  "UCX ({}) has no CUDA: install libucx-cu13 of PyPI and put its lib on "
                  "LD_LIBRARY_PATH",
                  ucx_->path);
    memory_type_ = UCS_MEMORY_TYPE_CUDA;
  }
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made on one thread, used on another
  status = ucx_->worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) return failed("make a worker", status);
  status = ucx_->worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return failed("be waited for", status);
  ucp_address_t* address = nullptr;
  size_t length = 0;
  status = ucx_->worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return failed("tell its address", status);
  const auto* bytes = reinterpret_cast<const uint8_t*>(address);
  own_.worker.assign(bytes, bytes + length);
  ucx_->worker_release_address(worker_, address);
  return register_memory(own);
}

// Regions that lie one behind the other are registered as one.
Status UcxTransport::register_memory(const KvMemory& own) {
  const std::vector<std::byte*> regions = own.all_regions();
  const std::vector<size_t> sizes = region_sizes(own.states, own.flags != nullptr);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (size_t i = 0; i < regions.size(); ++i) {
    own_.regions.push_back(reinterpret_cast<uintptr_t>(regions[i]));
    ranges.emplace_back(own_.regions.back(), sizes[i]);
  }
  std::ranges::sort(ranges);
  for (const auto& [address, bytes] : ranges) {
    if (!own_.memory.empty() && own_.memory.back().address + own_.memory.back().bytes == address) {
      own_.memory.back().bytes += bytes;
    } else {
      own_.memory.push_back({address, bytes, {}});
    }
  }
  for (ipc::KvUcxMemory& memory : own_.memory) {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.address = reinterpret_cast<void*>(memory.address);  // NOLINT(performance-no-int-to-ptr)
    params.length = memory.bytes;
    params.memory_type = memory_type_;
    ucp_mem_h handle = nullptr;
    void* key = nullptr;
    size_t length = 0;
    ucs_status_t status = ucx_->mem_map(context_, &params, &handle);
    if (status == UCS_OK) {
      registered_.push_back(handle);
      status = ucx_->rkey_pack(context_, handle, &key, &length);
    }
    if (status != UCS_OK)
      return fail(ErrorCode::kUnavailable, "UCX ({}) cannot register {} bytes of blocks: {}",
                  ucx_->path, memory.bytes, text(status));
    const auto* bytes = static_cast<const uint8_t*>(key);
    memory.key.assign(bytes, bytes + length);
    ucx_->rkey_buffer_release(key);
  }
  return {};
}

UcxTransport::~UcxTransport() {
  for (auto& [id, peer] : peers_) disconnect(peer);
  for (ucp_mem_h handle : registered_) ucx_->mem_unmap(context_, handle);
  if (worker_ != nullptr) ucx_->worker_destroy(worker_);
  if (context_ != nullptr) ucx_->cleanup(context_);
}

void UcxTransport::describe(ipc::KvExport& own) const { own.ucx = own_; }

Status UcxTransport::import(PeerId id, const ipc::KvExport& other) {
  if (other.ucx.worker.empty()) return fail(ErrorCode::kUnavailable, "it does not use UCX");
  Peer peer{other.ucx, region_sizes(other.states, other.layer_flags), nullptr, {}, UCS_OK};
  if (peer.told.regions.size() != peer.region_bytes.size())
    return fail(ErrorCode::kInvalidArgument, "it tells of {} regions, not of {}",
                peer.told.regions.size(), peer.region_bytes.size());
  for (size_t i = 0; i < peer.region_bytes.size(); ++i)
    if (memory_of(peer.told, peer.told.regions[i], peer.region_bytes[i]) == nullptr)
      return fail(ErrorCode::kInvalidArgument, "it has not registered region {}", i);
  Peer& there = peers_[id] = std::move(peer);
  Status connected = connect(there);
  if (!connected) peers_.erase(id);
  return connected;
}

Status UcxTransport::connect(Peer& peer) {
  if (peer.ep != nullptr) return {};
  peer.lost = UCS_OK;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.told.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &peer;  // a map's elements stay where they are
  params.err_handler.cb = [](void* of, ucp_ep_h, ucs_status_t why) {
    static_cast<Peer*>(of)->lost = why;
  };
  ucs_status_t status = ucx_->ep_create(worker_, &params, &peer.ep);
  if (status != UCS_OK) {
    peer.ep = nullptr;
    return fail(ErrorCode::kUnavailable, "no connection: {}", text(status));
  }
  for (const ipc::KvUcxMemory& memory : peer.told.memory) {
    ucp_rkey_h key = nullptr;
    status = ucx_->rkey_unpack(peer.ep, memory.key.data(), &key);
    if (status != UCS_OK) {
      disconnect(peer);
      return fail(ErrorCode::kUnavailable, "its memory cannot be reached: {}", text(status));
    }
    peer.keys.push_back(key);
  }
  return {};
}

void UcxTransport::disconnect(Peer& peer) {
  if (peer.ep != nullptr) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* request = ucx_->ep_close(std::exchange(peer.ep, nullptr), &params);
    const TimePoint until = steady_clock().now() + kCloses;
    while (UCS_PTR_IS_PTR(request) && ucx_->request_status(request) == UCS_INPROGRESS) {
      ucx_->worker_progress(worker_);
      REFRAIN_CHECK(steady_clock().now() < until, "a connection of UCX does not close");
    }
    if (UCS_PTR_IS_PTR(request)) ucx_->request_free(request);
  }
  for (ucp_rkey_h key : std::exchange(peer.keys, {})) ucx_->rkey_destroy(key);
}

void UcxTransport::forget(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  for (auto& [read, job] : jobs_)
    if (job.peer == id) job.error = kPeerGone;
  disconnect(found->second);
  peers_.erase(found);
}

void UcxTransport::post(ReadId id, PeerId peer, std::vector<Read> reads) {
  Job job{peer, cut_reads(reads, kPieceBytes), 0, 0, 0, ""};
  if (!peers_.contains(peer)) job.error = kPeerGone;
  jobs_.emplace(id, std::move(job));
  get_on();
}

// What is under way ends by itself.
void UcxTransport::cancel(ReadId id) {
  if (const auto job = jobs_.find(id); job != jobs_.end() && job->second.error.empty())
    job->second.error = kCancelled;
}

void UcxTransport::read(ReadId id, Job& job, Peer& peer) {
  const Read& read = job.reads[job.next];
  REFRAIN_CHECK(read.region < peer.region_bytes.size() &&
                    read.offset + read.bytes <= peer.region_bytes[read.region],
                "bytes {} to {} of region {} are not there", read.offset, read.offset + read.bytes,
                read.region);
  const uint64_t from = peer.told.regions[read.region] + read.offset;
  const auto memory =
      static_cast<size_t>(memory_of(peer.told, from, read.bytes) - peer.told.memory.data());
  auto piece = std::make_unique<Piece>(Piece{this, id, read.bytes});
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  const auto to = reinterpret_cast<uintptr_t>(read.to);
  if (const ipc::KvUcxMemory* own = memory_of(own_, to, read.bytes); own != nullptr) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = registered_[static_cast<size_t>(own - own_.memory.data())];
  }
  params.user_data = piece.get();
  params.memory_type = memory_type_;
  params.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    const std::unique_ptr<Piece> done(static_cast<Piece*>(user_data));
    done->transport->ucx_->request_free(request);
    done->transport->ended(*done, status);
  };
  ++job.next;
  ++job.under_way;
  void* request = ucx_->get(peer.ep, read.to, read.bytes, from, peer.keys[memory], &params);
  if (UCS_PTR_IS_PTR(request)) {
    piece.release();  // NOLINT(bugprone-unused-return-value): the callback has it
  } else {
    ended(*piece, UCS_PTR_STATUS(request));
  }
}

void UcxTransport::ended(const Piece& piece, ucs_status_t status) {
  Job& job = jobs_.at(piece.job);
  --job.under_way;
  if (status == UCS_OK) {
    job.bytes += static_cast<int64_t>(piece.bytes);
  } else if (job.error.empty()) {
    job.error = "UCX: " + text(status);
  }
}

void UcxTransport::get_on() {
  for (int turn = 0; turn < kTurns && ucx_->worker_progress(worker_) != 0;) ++turn;
  for (auto& [id, peer] : peers_) {
    if (peer.lost == UCS_OK) continue;
    for (auto& [read, job] : jobs_)
      if (job.peer == id && job.error.empty())
        job.error = "the connection ended: " + text(peer.lost);
    disconnect(peer);
  }
  size_t begun = 0;
  for (auto& [id, job] : jobs_) {
    while (job.error.empty() && job.next < job.reads.size() && job.under_way < kPiecesUnderWay &&
           begun < kBytesAtOnce) {
      Peer& peer = peers_.at(job.peer);
      if (const Status reached = connect(peer); reached) {
        begun += job.reads[job.next].bytes;
        read(id, job, peer);
      } else {
        job.error = reached.error().message;
      }
    }
  }
}

std::vector<Transport::Progress> UcxTransport::take_progress() {
  std::vector<Progress> progress;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    auto& [id, job] = *at;
    const bool all = job.next == job.reads.size() || !job.error.empty();
    const bool over = all && job.under_way == 0;
    if (over || job.bytes > 0)
      progress.push_back({id, std::exchange(job.bytes, 0), over, over ? job.error : ""});
    at = over ? jobs_.erase(at) : std::next(at);
  }
  return progress;
}

// What comes before it is armed is seen by the next poll at once.
void UcxTransport::wait_for(std::chrono::milliseconds wait) {
  if (ucx_->worker_arm(worker_) != UCS_OK) return;
  std::array<pollfd, 2> fds = {pollfd{event_fd_, POLLIN, 0}, pollfd{wake_fd_, POLLIN, 0}};
  ::poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
}

std::vector<Transport::Progress> UcxTransport::poll(std::chrono::milliseconds wait) {
  get_on();
  std::vector<Progress> progress = take_progress();
  if (!progress.empty() || wait.count() == 0) return progress;
  wait_for(wait);
  get_on();
  return take_progress();
}

}  // namespace refrain::worker
