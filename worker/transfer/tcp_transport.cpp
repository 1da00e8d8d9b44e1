#include "worker/transfer/tcp_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/protocol/crc32c.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "worker/transfer/read_plan.h"

namespace refrain::worker {
namespace {

constexpr uint32_t kMagic = 0x766b6672;
constexpr int kAsked = 4;              // chunks under way from a peer
constexpr size_t kPiecesAsked = 4096;  // of a chunk

enum Kind : uint32_t { kAsk = 1, kData, kRefused };

// In front of every frame; the ranks are of one build.
struct Head {
  uint32_t magic = kMagic;
  uint32_t kind = kAsk;
  uint64_t chunk = 0;
  uint32_t crc = 0;  // of the body
  uint32_t unused = 0;
};
struct Piece {
  uint64_t region = 0, offset = 0, bytes = 0;
};

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::listen(const std::string& address, KvMemory own,
                                                           Copier& copier, Buffer& pinned) {
  REFRAIN_ASSIGN_OR_RETURN(
      auto sockets, ipc::RankSockets::listen(
                        address, sizeof(Head) + std::max(kChunk, kPiecesAsked * sizeof(Piece)),
                        /*peers_change=*/true));
  return std::unique_ptr<TcpTransport>(
      new TcpTransport(std::move(sockets), std::move(own), copier, pinned));
}

TcpTransport::TcpTransport(std::unique_ptr<ipc::RankSockets> sockets, KvMemory own, Copier& copier,
                           Buffer& pinned)
    : sockets_(std::move(sockets)), own_(std::move(own)), copier_(copier), pinned_(pinned) {
  region_bytes_ = region_sizes(own_.states, own_.flags != nullptr);
  own_.regions = own_.all_regions();
}

void TcpTransport::describe(ipc::KvExport& own) const {
  own.tcp = {"", sockets_->address(), sockets_->key()};
}

Status TcpTransport::import(PeerId peer, const ipc::KvExport& other) {
  if (other.tcp.address.empty()) return fail(ErrorCode::kUnavailable, "it has no tcp address");
  Peer fresh{other.tcp};
  REFRAIN_RETURN_IF_ERROR(connect(fresh));
  peer_of_[fresh.connection] = peer;
  peers_[peer] = std::move(fresh);
  return {};
}

Status TcpTransport::connect(Peer& peer) {
  peer.connection = next_connection_++;
  peer.asked = 0;
  return sockets_->add(peer.connection, peer.address);
}

void TcpTransport::forget(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  sockets_->remove(found->second.connection);
  peer_of_.erase(found->second.connection);
  std::vector<ReadId> ids;
  for (const auto& [id, job] : jobs_)
    if (job.peer == peer) ids.push_back(id);
  for (const ReadId id : ids) end(id, kPeerGone);
  peers_.erase(found);
}

void TcpTransport::post(ReadId id, PeerId peer, std::vector<Read> reads) {
  jobs_.emplace(id, Job{peer, cut_reads(reads, kChunk), 0, 0});
  if (!peers_.contains(peer)) return end(id, kPeerGone);
  ask();
}

// What comes of it later is for nobody, and is dropped.
void TcpTransport::cancel(ReadId id) {
  if (jobs_.contains(id)) end(id, kCancelled);
}

void TcpTransport::end(ReadId id, std::string error) {
  const auto job = jobs_.find(id);
  if (const auto peer = peers_.find(job->second.peer); peer != peers_.end())
    peer->second.asked -= job->second.asked;
  std::erase_if(chunks_, [id](const auto& entry) { return entry.second.job == id; });
  jobs_.erase(job);
  progress_.push_back({id, 0, true, std::move(error)});
}

void TcpTransport::ask() {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const auto [id, job] = std::pair<ReadId, Job&>(at->first, at->second);
    ++at;  // the job may end
    Peer& peer = peers_.at(job.peer);
    while (peer.asked < kAsked && job.next < job.reads.size())
      if (!ask_chunk(id, job, peer)) break;
  }
}

bool TcpTransport::ask_chunk(ReadId id, Job& job, Peer& peer) {
  Chunk chunk{id, job.next, job.next, 0};
  std::vector<Piece> pieces;
  while (chunk.end < job.reads.size() && pieces.size() < kPiecesAsked &&
         chunk.bytes + job.reads[chunk.end].bytes <= kChunk) {
    const Read& read = job.reads[chunk.end++];
    pieces.push_back({read.region, read.offset, read.bytes});
    chunk.bytes += read.bytes;
  }
  Head head;
  head.chunk = next_chunk_++;
  const auto body = std::as_bytes(std::span(pieces));
  head.crc = ipc::crc32c(body);
  if (const Status sent = sockets_->send(peer.connection, std::as_bytes(std::span(&head, 1)), body);
      !sent) {
    end(id, sent.error().message);
    return false;
  }
  job.next = chunk.end;
  ++job.asked;
  ++peer.asked;
  chunks_.emplace(head.chunk, chunk);
  return true;
}

std::vector<Transport::Progress> TcpTransport::poll(std::chrono::milliseconds wait) {
  if (!progress_.empty()) wait = std::chrono::milliseconds(0);
  for (int i = 0; i < 2 * kAsked; ++i) {
    const auto frame = sockets_->receive(i == 0 ? wait : std::chrono::milliseconds(0));
    if (!frame) break;
    take(*frame);
  }
  check_connections();
  ask();
  return std::exchange(progress_, {});
}

// A connection that ended is made anew; what was asked for over it will not come.
void TcpTransport::check_connections() {
  for (auto& [id, peer] : peers_) {
    if (!sockets_->lost(peer.connection)) continue;
    std::vector<ReadId> ids;
    for (const auto& [read, job] : jobs_)
      if (job.peer == id) ids.push_back(read);
    for (const ReadId read : ids) end(read, "the connection to " + peer.address.address + " ended");
    sockets_->remove(peer.connection);
    peer_of_.erase(peer.connection);
    if (const Status again = connect(peer); !again)
      log::warn("{}: {}", peer.address.address, again.error().message);
    peer_of_[peer.connection] = id;
  }
}

void TcpTransport::take(const ipc::RankSockets::Frame& frame) {
  Head head;
  if (frame.bytes.size() < sizeof head) return;
  std::memcpy(&head, frame.bytes.data(), sizeof head);
  const auto body = frame.bytes.subspan(sizeof head);
  if (head.magic != kMagic) return log::warn("a frame that is none of a transfer is dropped");
  if (head.kind == kAsk) {
    if (head.crc == ipc::crc32c(body)) return answer(frame.from, head.chunk, body);
    log::warn("a damaged question for blocks is dropped");
  } else if (head.kind == kData) {
    take_data(head.chunk, head.crc, body);
  } else if (const auto found = chunks_.find(head.chunk); found != chunks_.end()) {
    end(found->second.job, "the rank that has the blocks refuses them");
  }
}

void TcpTransport::answer(int connection, uint64_t chunk, std::span<const std::byte> body) {
  const auto found = peer_of_.find(connection);
  if (found == peer_of_.end()) return;  // forgotten meanwhile
  std::vector<Piece> pieces(body.size() / sizeof(Piece));
  std::memcpy(pieces.data(), body.data(), pieces.size() * sizeof(Piece));
  Head head;
  head.kind = kData;
  head.chunk = chunk;
  auto* to = static_cast<std::byte*>(pinned_.data());
  size_t bytes = 0;
  for (const Piece& piece : pieces) {
    const bool there = piece.region < own_.regions.size() && piece.bytes <= kChunk - bytes &&
                       piece.bytes <= region_bytes_[piece.region] &&
                       piece.offset <= region_bytes_[piece.region] - piece.bytes;
    const bool flags = there && own_.flags != nullptr && own_.regions[piece.region] == own_.flags;
    const bool whole_words = (piece.offset | piece.bytes) % sizeof(uint64_t) == 0;
    if (!there || (flags && !whole_words)) {
      head.kind = kRefused;
      bytes = 0;
      break;
    }
    const std::byte* from = own_.regions[piece.region] + piece.offset;
    flags ? copier_.copy_words(to + bytes, from, piece.bytes)
          : copier_.copy(to + bytes, from, piece.bytes);
    bytes += piece.bytes;
  }
  copier_.finish();
  const std::span data(to, bytes);
  head.crc = ipc::crc32c(data);
  const int back = peers_.at(found->second).connection;
  if (const Status sent = sockets_->send(back, std::as_bytes(std::span(&head, 1)), data); !sent)
    log::warn("blocks for {}: {}", peers_.at(found->second).address.address, sent.error().message);
}

void TcpTransport::take_data(uint64_t id, uint32_t crc, std::span<const std::byte> body) {
  const auto found = chunks_.find(id);
  if (found == chunks_.end()) return;  // of a read that has ended
  const Chunk chunk = found->second;
  if (body.size() != chunk.bytes || crc != ipc::crc32c(body))
    return end(chunk.job, "a frame of blocks came damaged");
  chunks_.erase(found);
  Job& job = jobs_.at(chunk.job);
  const std::byte* from = body.data();
  if (!copier_.is_host_memory()) {
    std::memcpy(pinned_.data(), from, body.size());
    from = static_cast<const std::byte*>(pinned_.data());
  }
  for (size_t i = chunk.begin; i < chunk.end; ++i) {
    copier_.copy(job.reads[i].to, from, job.reads[i].bytes);
    from += job.reads[i].bytes;
  }
  copier_.finish();
  --job.asked;
  --peers_.at(job.peer).asked;
  const bool ended = job.next == job.reads.size() && job.asked == 0;
  if (ended) jobs_.erase(chunk.job);
  progress_.push_back({chunk.job, static_cast<int64_t>(chunk.bytes), ended, ""});
}

}  // namespace refrain::worker
