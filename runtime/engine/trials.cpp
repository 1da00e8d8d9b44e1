#include "runtime/engine/trials.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/group_service.h"

namespace refrain {
namespace {

bool is_suspect(const std::unique_ptr<Sequence>& sequence) { return sequence->suspect(); }

}  // namespace

void RequestQueue::add(std::unique_ptr<Sequence> sequence) {
  const auto later = std::ranges::upper_bound(queue_, sequence->id, {},
                                              [](const auto& other) { return other->id; });
  queue_.insert(later, std::move(sequence));
}

void RequestQueue::remove(RequestId id) {
  std::erase_if(queue_, [id](const auto& sequence) { return sequence->id == id; });
}

const Sequence* RequestQueue::find(RequestId id) const {
  for (const auto& sequence : queue_)
    if (sequence->id == id) return sequence.get();
  return nullptr;
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::take_all() {
  std::vector<std::unique_ptr<Sequence>> all(std::make_move_iterator(queue_.begin()),
                                             std::make_move_iterator(queue_.end()));
  queue_.clear();
  return all;
}

size_t RequestQueue::num_suspects() const {
  return static_cast<size_t>(std::ranges::count_if(queue_, is_suspect));
}

std::unique_ptr<Sequence> RequestQueue::take_suspect() {
  const auto next = std::ranges::find_if(queue_, is_suspect);
  if (next == queue_.end()) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*next);
  queue_.erase(next);
  return sequence;
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::take_suspects() {
  std::vector<std::unique_ptr<Sequence>> suspects;
  while (auto sequence = take_suspect()) suspects.push_back(std::move(sequence));
  return suspects;
}

void Trials::give_up(const Sequence& sequence, const Error& error) {
  log::error("request {} was in flight at {} losses of its workers in a row; it is ended",
             sequence.id, sequence.group_losses);
  if (ended_++ == 0) to_explain_ += Sequence::kSuspectLosses;
  ++ended_in_a_row_;
  hooks_.end(sequence, error);
}

// A suspect that was alone in flight is what ends the workers: it is not tried again.
void Trials::took_back(std::vector<std::unique_ptr<Sequence>> requests, bool alone,
                       const Error& error) {
  for (auto& sequence : requests) {
    if (alone && sequence->in_lost_step) ++sequence->losses_alone;
    if (alone && sequence->in_lost_step && sequence->suspect()) {
      give_up(*sequence, error);
    } else {
      queue_.add(std::move(sequence));
    }
  }
}

void Trials::isolate(int32_t group, const Error& error) {
  if (group_ == group) {
    current_ = 0;
    proving_ = false;
  }
  const size_t suspects = queue_.num_suspects();
  if (!on_) {
    ended_ = ended_in_a_row_ = 0;
    if (suspects == 0) return;
    on_ = true;
    group_ = group;
    current_ = 0;
    log::warn(
        "{} requests were in flight at two losses in a row; each runs alone, to find the one "
        "that ends its workers",
        suspects);
    tell(0);
  }
  if (ended_in_a_row_ < kMostInARow) return;
  log::error(
      "{} requests in a row ended their workers alone; the {} others that were in flight at "
      "two losses in a row end, too",
      ended_in_a_row_, suspects);
  for (const auto& sequence : queue_.take_suspects()) give_up(*sequence, error);
}

void Trials::completed() {
  if (!on_ && to_explain_ == 0) return;
  ended_in_a_row_ = 0;
  if (to_explain_ > 0) tell(std::exchange(to_explain_, 0));
}

// Workers that do not even answer a canary are lost for no request's sake.
void Trials::tell(int explained) { hooks_.tell({on_ && !proving_, explained, group_}); }

void Trials::proving(int32_t group) {
  if (!reserves(group)) return;
  proving_ = true;
  tell(0);
}

// The workers are good: who was blamed for the losses before is at fault, and all others run.
void Trials::good_canary(int32_t group, bool proved) {
  if (reserves(group)) proving_ = false;
  const int explained = std::exchange(to_explain_, 0);
  if (explained > 0 || (proved && reserves(group))) tell(explained);
}

void Trials::go_on(GroupService& group) {
  if (group.waits_for_ranks()) return;
  if (const Sequence* current = current_ == 0 ? nullptr : group.find(current_)) {
    if (!current->past_loss()) return;
    ended_in_a_row_ = 0;
    for (auto& sequence : group.release_all()) {
      sequence->group_losses = 0;
      hooks_.waits(sequence->id);
      queue_.add(std::move(sequence));
    }
  }
  if (!group.empty()) return;  // requests from before the trials came to it
  while (auto next = queue_.take_suspect()) {
    current_ = next->id;
    hooks_.run(std::move(next));
    if (!group.empty()) return;  // else it was refused
  }
  log::warn("no suspect is left: {} ended their workers alone; all others run again", ended_);
  on_ = false;
  current_ = 0;
  ended_ = ended_in_a_row_ = 0;
  hooks_.over();
  tell(0);
}

}  // namespace refrain
