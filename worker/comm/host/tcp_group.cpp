#include "worker/comm/host/tcp_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/processors.h"
#include "worker/device/host/wait.h"

namespace refrain::worker {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr uint32_t kFrameMagic = 0x74726772;
constexpr milliseconds kStopSlice{20};   // between two looks at whether to wait on
constexpr milliseconds kLastWords{200};  // of a rank whose connection has ended
constexpr size_t kMaxReasonBytes = 512;

enum FrameKind : uint32_t { kPost = 1, kLeft, kGaveUp };  // the latter two: last words

// In front of every frame; the ranks of a group are of one build.
struct Head {
  uint32_t magic = kFrameMagic;
  uint32_t kind = kPost;
  uint32_t sequence = 0;
  Collective collective = Collective::kBarrier;
  uint32_t dtype = 0;
  int32_t root = -1;
  uint64_t rows = 0;
  uint64_t cols = 0;
};
static_assert(std::has_unique_object_representations_v<Head>);

// What a rank sends to each other one; nothing: more than fits.
std::optional<size_t> payload_bytes(const Post& post, int sender) {
  if (post.collective == Collective::kBarrier) return 0;
  if (post.collective == Collective::kBroadcast && sender != post.root) return 0;
  size_t count = 0, bytes = 0;
  if (__builtin_mul_overflow(post.rows, post.cols, &count) ||
      __builtin_mul_overflow(count, size_of(post.dtype), &bytes) || bytes > HostGroup::kSlotBytes) {
    return std::nullopt;
  }
  return bytes;
}

bool is_post(const Head& head) {
  return head.kind == kPost && head.collective <= Collective::kReduceScatter &&
         head.dtype <= static_cast<uint32_t>(DType::kUInt8);
}

}  // namespace

size_t TcpGroup::max_frame_bytes() { return sizeof(Head) + kSlotBytes; }

Result<std::unique_ptr<HostGroup>> TcpGroup::join(const GroupOptions& options,
                                                  std::unique_ptr<ipc::RankSockets> sockets,
                                                  const std::vector<ipc::RankAddress>& ranks,
                                                  int threads) {
  REFRAIN_RETURN_IF_ERROR(check_group(options));
  REFRAIN_CHECK(std::ssize(ranks) == options.size, "{} addresses of {} ranks", ranks.size(),
                options.size);
  std::unique_ptr<TcpGroup> group(new TcpGroup(options, std::move(sockets), ranks));
  REFRAIN_RETURN_IF_ERROR(group->sockets_->connect(ranks, options.rank));
  REFRAIN_RETURN_IF_ERROR(group->meet_first());
  group->crowded_ = threads > usable_processors();
  log::info("group {} meets over tcp, rank {} at {}", options.token, options.rank,
            group->sockets_->address());
  return std::unique_ptr<HostGroup>(std::move(group));
}

TcpGroup::TcpGroup(const GroupOptions& options, std::unique_ptr<ipc::RankSockets> sockets,
                   const std::vector<ipc::RankAddress>& ranks)
    : HostGroup(options),
      sockets_(std::move(sockets)),
      memory_(bytes_of_slots(options.size)),
      peers_(ranks.size()) {
  slots_ = memory_.data();
  for (size_t rank = 0; rank < ranks.size(); ++rank) peers_[rank].address = ranks[rank].address;
}

TcpGroup::~TcpGroup() { tell_all(kLeft, {}); }

// The meeting in which everybody has connected; who does not come is no fault of the device yet.
Status TcpGroup::meet_first() {
  try {
    meet({});
    return {};
  } catch (const DeviceError& error) {
    const auto missing = waited_for();
    if (!missing) throw;
    return fail(ErrorCode::kDeadline, "group {} has not come together: {}", options_.token,
                error.what());
  }
}

std::string TcpGroup::name(int peer) const {
  return fmt::format("rank {} ({})", peer, peers_[static_cast<size_t>(peer)].address);
}

const Post& TcpGroup::post_of(int peer) const {
  return peers_[static_cast<size_t>(peer)].posts[(sequence_ + 1) & 1];
}

void TcpGroup::send_post(const Post& post) {
  const uint32_t next = sequence_ + 1;
  Head head;
  head.sequence = next;
  head.collective = post.collective;
  head.dtype = static_cast<uint32_t>(post.dtype);
  head.root = post.root;
  head.rows = post.rows;
  head.cols = post.cols;
  const auto bytes = payload_bytes(post, rank());
  REFRAIN_CHECK(bytes.has_value(), "{} does not fit an exchange", describe(post));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Status sent =
        sockets_->send(peer, std::as_bytes(std::span(&head, 1)), {slot(rank(), next), *bytes});
    if (!sent) give_up(fmt::format("{}: {}", name(peer), sent.error().message));
  }
}

std::optional<int> TcpGroup::waited_for() const {
  for (int peer = 0; peer < size(); ++peer) {
    const uint32_t seen = peers_[static_cast<size_t>(peer)].sequence;
    if (peer != rank() && static_cast<int32_t>(seen - (sequence_ + 1)) < 0) return peer;
  }
  return std::nullopt;
}

void TcpGroup::exchange(const Post& post, Deadline deadline) {
  send_post(post);
  while (const std::optional<int> peer = waited_for()) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    const auto what = [&] {
      return fmt::format("{} (exchange {})", describe(post), sequence_ + 1);
    };
    if (left.count() <= 0) {
      give_up(fmt::format("{} did not come to {} within {} ms", name(*peer), what(),
                          options_.timeout_ms));
    }
    const bool may_stop = sequence_ == 0 && options_.stop;
    if (may_stop && options_.stop()) stop(fmt::format("no need to wait for {}", name(*peer)));
    if (const auto frame = sockets_->receive(may_stop ? std::min(left, kStopSlice) : left))
      take(*frame);
    // The frame may be another rank's, and this one's come behind it.
    const Peer& waited = peers_[static_cast<size_t>(*peer)];
    if (waited_for() == peer && sockets_->lost(*peer)) hear_last_words();
    if (const std::string reason = told(); !reason.empty()) stop(reason);
    if (waited_for() != peer) continue;
    if (waited.left) give_up(fmt::format("rank {} left the group before {}", *peer, what()));
    if (sockets_->lost(*peer))
      give_up(fmt::format("{} is gone; it never came to {}", name(*peer), what()));
  }
}

// What came before a connection ended, or comes still.
void TcpGroup::hear_last_words() {
  const auto end = steady_clock::now() + kLastWords;
  for (auto left = kLastWords; left.count() > 0 && told().empty() && !gone().empty();
       left = std::chrono::ceil<milliseconds>(end - steady_clock::now())) {
    if (const auto frame = sockets_->receive(left)) take(*frame);
  }
}

std::string TcpGroup::told() const {
  for (int peer = 0; peer < size(); ++peer) {
    const std::string& reason = peers_[static_cast<size_t>(peer)].gave_up;
    if (!reason.empty()) return fmt::format("rank {} gave up: {}", peer, reason);
  }
  return "";
}

std::string TcpGroup::gone() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && sockets_->lost(peer) && !peers_[static_cast<size_t>(peer)].left)
      return fmt::format("{} is gone", name(peer));
  }
  return "";
}

std::string TcpGroup::find_missing() {
  while (const auto frame = sockets_->receive(milliseconds(0))) take(*frame);
  hear_last_words();
  if (std::string reason = told(); !reason.empty()) return reason;
  // Who is gone comes first: the others may have left because of it.
  if (std::string reason = gone(); !reason.empty()) {
    tell(reason);
    return reason;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peers_[static_cast<size_t>(peer)].left) return fmt::format("rank {} left the group", peer);
  }
  return "";
}

void TcpGroup::take(const ipc::RankSockets::Frame& frame) {
  Peer& peer = peers_[static_cast<size_t>(frame.from)];
  Head head;
  if (frame.bytes.size() < sizeof head)
    give_up(fmt::format("{} sent a frame of {} bytes", name(frame.from), frame.bytes.size()));
  std::memcpy(&head, frame.bytes.data(), sizeof head);
  const auto body = frame.bytes.subspan(sizeof head);
  if (head.magic == kFrameMagic && head.kind == kLeft) {
    peer.left = true;
  } else if (head.magic == kFrameMagic && head.kind == kGaveUp) {
    peer.gave_up.assign(reinterpret_cast<const char*>(body.data()),
                        std::min(body.size(), kMaxReasonBytes));
  } else if (head.magic == kFrameMagic && is_post(head)) {
    take_post(peer, frame);
  } else {
    give_up(fmt::format("{} sent a frame that is none of a group's", name(frame.from)));
  }
}

// A rank can be one exchange ahead: the slots of that one are free (HostGroup::slot_of).
void TcpGroup::take_post(Peer& peer, const ipc::RankSockets::Frame& frame) {
  Head head;
  std::memcpy(&head, frame.bytes.data(), sizeof head);
  const auto body = frame.bytes.subspan(sizeof head);
  const Post post{head.collective, static_cast<DType>(head.dtype), head.root, head.rows, head.cols};
  const uint32_t ahead = head.sequence - sequence_;
  if (head.sequence != peer.sequence + 1 || ahead < 1 || ahead > 2) {
    give_up(fmt::format("{} sent exchange {} after {}; this rank has made {}", name(frame.from),
                        head.sequence, peer.sequence, sequence_));
  }
  if (payload_bytes(post, frame.from) != body.size()) {
    give_up(fmt::format("{} sent {} bytes for {}", name(frame.from), body.size(), describe(post)));
  }
  if (!body.empty()) std::memcpy(slot(frame.from, head.sequence), body.data(), body.size());
  peer.posts[head.sequence & 1] = post;
  peer.sequence = head.sequence;
}

void TcpGroup::tell(const std::string& reason) {
  tell_all(kGaveUp,
           std::as_bytes(std::span(reason.data(), std::min(reason.size(), kMaxReasonBytes))));
}

// Last words: who does not take them will see the connection end.
void TcpGroup::tell_all(uint32_t kind, std::span<const std::byte> body) {
  Head head;
  head.kind = kind;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || sockets_->lost(peer)) continue;
    const Status sent = sockets_->send(peer, std::as_bytes(std::span(&head, 1)), body);
    if (!sent) log::debug("{}", sent.error().message);
  }
}

}  // namespace refrain::worker
