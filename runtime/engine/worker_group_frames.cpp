// The half of WorkerGroup that hears its peers: the handshake, the start, answers and last words.

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/worker_group.h"

namespace refrain {

void WorkerGroup::on_frame(const ipc::PeerId& from, std::span<const std::byte> bytes) {
  if (!active()) return;
  Result<ipc::DecodedFrame> frame = ipc::decode_frame(bytes);
  if (!frame) return on_bad_frame(from, frame.error().message);
  if (const auto* hello = std::get_if<ipc::Hello>(&frame->message)) return on_hello(from, *hello);
  const int32_t index = rank_of(from);
  if (index < 0) {
    ++frames_rejected_;  // of an epoch that is over, or of a peer that never said hello
    return;
  }
  Rank& rank = *ranks_[static_cast<size_t>(index)];
  if (!rank.gate.accept(frame->info)) {
    ++frames_rejected_;
    if (rank.gate.gaps() > 0)
      lose("frames", {index}, fmt::format("frames of {} were lost", name_of(index)));
    return;
  }
  rank.spoke = true;
  const TimePoint now = executor_->clock().now();
  positions_.heard(index, now);
  if (const auto* position = std::get_if<ipc::Position>(&frame->message)) {
    if (positions_.report(index, *position, now) && state_ == GroupState::kReady)
      handlers_.on_device_progress();
    return;
  }
  rank.last_heard = now;
  on_message(index, std::move(frame->message));
}

void WorkerGroup::on_bad_frame(const ipc::PeerId& from, const std::string& why) {
  ++frames_rejected_;
  const int32_t index = rank_of(from);
  log::warn("bad frame from {}: {}", from, why);
  if (index < 0) return;
  const TimePoint now = executor_->clock().now();
  std::deque<TimePoint>& bad = ranks_[static_cast<size_t>(index)]->bad_frames;
  bad.push_back(now);
  while (now - bad.front() > kBadFrameWindow) bad.pop_front();
  if (bad.size() >= kBadFrames)
    lose("frames", {index},
         fmt::format("{} sent {} bad frames, the last: {}", name_of(index), bad.size(), why));
}

void WorkerGroup::on_hello(const ipc::PeerId& from, const ipc::Hello& hello) {
  if (const int32_t known = rank_of(from); known >= 0) {
    Rank& rank = *ranks_[static_cast<size_t>(known)];
    if (!rank.spoke) return beat_or_fence(rank);  // it asked again before the answer came
    lose("frames", {known}, fmt::format("{} lost its connection and begins anew", name_of(known)));
  }
  if (auto reason = refusal(hello, options_.identity)) return refuse(from, std::move(*reason));
  if (auto& holder = ranks_[static_cast<size_t>(hello.rank)]) {
    if (!(holder->gone && *holder->gone) && beat(*holder))
      return refuse(from, fmt::format("{} is already there; start this worker with another --rank",
                                      name_of(hello.rank)));
    lose("process", {hello.rank}, fmt::format("{} is gone", name_of(hello.rank)));
  }
  outgrow(hello.last_epoch);
  const auto mixed = mixed_group(hello);
  welcome(from, hello);
  if (mixed) lose("start", {hello.rank}, *mixed);
}

// The clock that epochs begin from may have been set back since the coordinator before.
void WorkerGroup::outgrow(Epoch epoch) {
  if (epoch < epoch_) return;
  if (std::ranges::any_of(ranks_, [](const auto& rank) { return rank.has_value(); }))
    lose("start", {},
         fmt::format("a worker comes from epoch {}, later than this group's {}", epoch, epoch_));
  epoch_ = epoch + 1;
}

// ranks that kept the graphs of one group serve on together; they cannot do so with others.
std::optional<std::string> WorkerGroup::mixed_group(const ipc::Hello& hello) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank] || ranks_[rank]->hello.held_group == hello.held_group) continue;
    const auto holds = [](const ipc::Hello& each) {
      return each.held_group.empty() ? "begins anew" : "holds the graphs of " + each.held_group;
    };
    return fmt::format("{} {} and rank {} {}; every worker has to start again",
                       name_of(static_cast<int32_t>(rank)), holds(ranks_[rank]->hello), hello.rank,
                       holds(hello));
  }
  return std::nullopt;
}

// Until a rank has answered its Welcome it gets that again: frame 1 stays the only one, so that no
// number is used twice however often it goes.
Status WorkerGroup::beat(Rank& rank) {
  if (rank.spoke) {
    ipc::encode_frame(ipc::Heartbeat{gather_.last_done(), ++heartbeats_}, {epoch_, ++rank.sent},
                      frame_);
  } else {
    rank.sent = 1;
    ipc::encode_frame(
        ipc::Welcome{options_.worker, fmt::format("{}-{}", options_.token_prefix, epoch_),
                     options_.process.pid, options_.process.start, options_.process.realm,
                     rank.hello.held_group, distrusted_},
        {epoch_, 1}, frame_);
  }
  return endpoint_->send(rank.peer, frame_);
}

void WorkerGroup::refuse(const ipc::PeerId& peer, std::string reason) {
  log::warn("worker {} refused: {}", peer, reason);
  ipc::encode_frame(ipc::Refuse{std::move(reason)}, {0, 1}, frame_);
  if (const Status sent = endpoint_->send(peer, frame_); !sent)
    log::warn("the refusal did not reach {}: {}", peer, sent.error().message);
}

void WorkerGroup::welcome(const ipc::PeerId& from, const ipc::Hello& hello) {
  Rank& rank = ranks_[static_cast<size_t>(hello.rank)].emplace(epoch_);
  rank.peer = from;
  rank.hello = hello;
  rank.last_heard = executor_->clock().now();
  board_.restart(rank.last_heard);  // who was here may have waited for it
  board_.moved(hello.rank, rank.last_heard, true);
  watch(rank);
  beat_or_fence(rank);
  if (state_ != GroupState::kWaiting) return;
  arm_timer(options_.heartbeat_interval);
  set_state(GroupState::kStarting, fmt::format("{} is here", name_of(hello.rank)));
}

void WorkerGroup::watch(Rank& rank) {
  const ProcessIdentity process{rank.hello.realm, rank.hello.pid, rank.hello.process_start};
  if (!process.same_realm(options_.process)) return;  // its pid means nothing here
  const auto gone = std::make_shared<bool>(false);
  const bool watched =
      watch_(process, [weak = weak_from_this(), epoch = epoch_, gone, index = rank.hello.rank] {
        *gone = true;
        if (const auto self = weak.lock(); self && self->epoch_ == epoch)
          self->on_process_end(index);
      });
  if (watched) {
    rank.gone = gone;
  } else {
    log::warn("the process of {} cannot be watched; its connection and heartbeats are",
              name_of(rank.hello.rank));
  }
}

void WorkerGroup::on_message(int32_t rank, ipc::Message message) {
  if (auto* result = std::get_if<ipc::StepResult>(&message)) {
    on_step_result(rank, std::move(*result));
  } else if (const auto* beat = std::get_if<ipc::Heartbeat>(&message)) {
    ranks_[static_cast<size_t>(rank)]->last_step = beat->last_step;
  } else if (auto* progress = std::get_if<ipc::Progress>(&message)) {
    board_.moved(rank, executor_->clock().now(), true);
    if (const auto shown = board_.report(rank, std::move(*progress))) {
      detail_ = progress_line(*shown);
      handlers_.on_progress(*shown);
    }
  } else if (const auto* loaded = std::get_if<ipc::Loaded>(&message)) {
    on_loaded(rank, *loaded);
  } else if (auto* ready = std::get_if<ipc::Ready>(&message)) {
    on_ready(rank, std::move(*ready));
  } else if (const auto* failed = std::get_if<ipc::Failed>(&message)) {
    on_failed(rank, *failed);
  } else {
    lose("frames", {rank},
         fmt::format("{} sent {}, which only a coordinator sends", name_of(rank),
                     ipc::message_name(message.index())));
  }
}

// All ranks keep the same block tables, so that the smallest cache is the cache of all.
void WorkerGroup::on_loaded(int32_t rank, const ipc::Loaded& loaded) {
  auto& known = ranks_[static_cast<size_t>(rank)]->loaded;
  if (state_ != GroupState::kStarting || known)
    return lose("start", {rank}, fmt::format("{} said twice that it is loaded", name_of(rank)));
  known = loaded;
  const TimePoint now = executor_->clock().now();
  board_.moved(rank, now, false);
  int64_t least = std::numeric_limits<BlockId>::max() - 1;
  int32_t smallest = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i] || !ranks_[i]->loaded) return;
    if (ranks_[i]->loaded->num_kv_blocks >= least) continue;
    least = ranks_[i]->loaded->num_kv_blocks;
    smallest = static_cast<int32_t>(i);
  }
  const int64_t tokens = (least - 1) * options_.worker.block_size;
  if (tokens < options_.worker.max_model_len)
    return lose(
        "start", {smallest},
        fmt::format("the KV cache of {} holds {} tokens, less than one request of "
                    "--max-model-len {}; lower it or give the cache more memory "
                    "(--gpu-memory-utilization, --kv-cache-memory-bytes)",
                    name_of(smallest), std::max<int64_t>(tokens, 0), options_.worker.max_model_len),
        true);
  num_kv_blocks_ = least;
  for (size_t i = 0; i < ranks_.size(); ++i) board_.moved(static_cast<int32_t>(i), now, true);
  broadcast(ipc::InitCache{least});
}

void WorkerGroup::on_ready(int32_t rank, ipc::Ready ready) {
  auto& known = ranks_[static_cast<size_t>(rank)]->ready;
  if (state_ != GroupState::kStarting || known || num_kv_blocks_ == 0)
    return lose("start", {rank},
                fmt::format("{} said out of turn that it is ready", name_of(rank)));
  if (ready.num_kv_blocks < 2 || ready.num_kv_blocks > num_kv_blocks_)
    return lose("start", {rank},
                fmt::format("{} says it has {} KV blocks; it was told of {}", name_of(rank),
                            ready.num_kv_blocks, num_kv_blocks_));
  known = std::move(ready);
  const TimePoint now = executor_->clock().now();
  board_.moved(rank, now, false);
  std::vector<ipc::Ready> all;
  int64_t least = num_kv_blocks_;
  for (const auto& each : ranks_) {
    if (!each || !each->ready) return;
    all.push_back(*each->ready);
    least = std::min(least, each->ready->num_kv_blocks);  // graphs took memory, more on some ranks
  }
  if (auto mismatch = ready_mismatch(all)) return lose("start", {}, std::move(*mismatch), true);
  for (auto& each : ranks_) each->last_heard = now;
  positions_.restart(now);
  state_ = GroupState::kReady;
  const bool adopted = std::ranges::all_of(ranks_, [](const auto& r) { return r->loaded->kept; });
  detail_ = fmt::format("{} rank{} ready{}", ranks_.size(), ranks_.size() == 1 ? "" : "s",
                        adopted ? ", adopted with weights and graphs" : "");
  arm_timer(options_.heartbeat_interval);
  num_kv_blocks_ = 0;
  handlers_.on_ready(least);
  handlers_.on_state(state_, detail_);
}

void WorkerGroup::on_step_result(int32_t rank, ipc::StepResult result) {
  ranks_[static_cast<size_t>(rank)]->last_step = result.step;
  auto done = gather_.add(rank, std::move(result), executor_->clock().now());
  if (!done) return lose("answers", {rank}, done.error().message);
  if (*done) handlers_.on_step(std::move(**done));
}

// A process that failed says why in its last frame, which may come after the news of its end.
void WorkerGroup::on_process_end(int32_t rank) {
  executor_->post_after(kLastWords, [weak = weak_from_this(), epoch = epoch_, rank] {
    if (const auto self = weak.lock(); self && self->epoch_ == epoch)
      self->lose("process", {rank}, fmt::format("the process of {} ended", self->name_of(rank)));
  });
}

void WorkerGroup::on_failed(int32_t rank, const ipc::Failed& failed) {
  const std::string where = failed.step > 0 ? fmt::format(" at step {}", failed.step) : "";
  lose("worker", {rank}, fmt::format("{} failed{}: {}", name_of(rank), where, failed.message),
       failed.configuration);
}

}  // namespace refrain
