#include "runtime/engine/request_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace refrain {
namespace {

// A request whose blocks did not come so often is computed in one group.
constexpr int32_t kTransfersTried = 2;

std::vector<ipc::GroupRole> roles_of(const std::vector<Group>& groups) {
  std::vector<ipc::GroupRole> roles;
  roles.reserve(groups.size());
  for (const Group& group : groups) roles.push_back(group.role);
  return roles;
}

}  // namespace

RequestPlacement::RequestPlacement(const EngineConfig& config, GroupServices& groups,
                                   LiveRequests& live, std::function<void(Isolation)> isolation)
    : config_(config),
      groups_(groups),
      live_(live),
      router_(roles_of(config.groups()), config.worker.block_size),
      kv_exchange_(
          config.groups(),
          [this](int32_t index, const ipc::Message& message) { groups_[index].tell(message); }),
      held_(config.groups().size(), false),
      trials_(queue_, trial_hooks(std::move(isolation))) {}

Trials::Hooks RequestPlacement::trial_hooks(std::function<void(Isolation)> isolation) {
  return {[this](const Sequence& sequence, const Error& error) { give_up(sequence, error); },
          [this](std::unique_ptr<Sequence> sequence) {
            sequence->hands_over = false;
            sequence->source.reset();
            to_group(trials_.group(), std::move(sequence));
          },
          [this](RequestId id) { live_.at(id).group = LiveRequest::kNoGroup; },
          [this] {
            open_or_close_all();
            route_waiting();
          },
          std::move(isolation)};
}

// A group takes requests while it serves, unless it is held or one is tried alone.
void RequestPlacement::open_or_close(int32_t index) {
  const bool open =
      groups_[index].serves() && !trials_.holds(index) && !held_[static_cast<size_t>(index)];
  if (open == router_.is_open(index)) return;
  if (open) {
    router_.open(index);
  } else {
    router_.close(index);
  }
}

void RequestPlacement::open_or_close_all() {
  for (int32_t index = 0; index < groups_.size(); ++index) open_or_close(index);
}

// Whether the request can go on in another group from its blocks alone, and it pays to try.
bool RequestPlacement::may_hand_over(const Sequence& sequence) const {
  const ipc::SlotSetup& setup = sequence.params.setup;
  const bool counts_output = setup.presence_penalty != 0.0f || setup.frequency_penalty != 0.0f;
  // A penalty counts tokens that rows bring.
  const bool counts_all =
      setup.repetition_penalty != 1.0f || (counts_output && sequence.output_len() > 0);
  return !counts_all && sequence.failed_transfers < kTransfersTried &&
         sequence.params.max_tokens - sequence.output_len() > 1;
}

// By the fastest decode group that has computed prompts; before one has, by what prompts take in a
// prefill group, as if ranks shared the work evenly.
bool RequestPlacement::transfer_pays(const Sequence& sequence) {
  if (config_.kv_transfer_policy == "always") return true;
  std::optional<double> decode, prefill;
  const auto best = [](std::optional<double>& to, double seconds) {
    to = to ? std::min(*to, seconds) : seconds;
  };
  double decode_ranks = 1;
  for (int32_t group = 0; group < groups_.size(); ++group) {
    const double ranks = groups_[group].num_ranks();
    const auto seconds = groups_[group].seconds_a_token();
    const bool decodes = router_.role(group) == ipc::GroupRole::kDecode;
    if (decodes) decode_ranks = std::max(decode_ranks, ranks);
    if (seconds) best(decodes ? decode : prefill, decodes ? *seconds : *seconds * ranks);
  }
  if (!decode && prefill) decode = *prefill / decode_ranks;
  return choice_.pays(sequence.length(), decode);
}

void RequestPlacement::hold(int32_t index, bool held) {
  held_[static_cast<size_t>(index)] = held;
  groups_[index].set_held(held);
  open_or_close(index);
  route_waiting();
}

// Its old workers have gone, and whoever read their blocks knows.
void RequestPlacement::set_role(int32_t index, ipc::GroupRole role) {
  Group group = config_.groups().at(static_cast<size_t>(index));
  group.role = role;
  router_.set_role(index, role);
  kv_exchange_.set_role(index, role);
  groups_[index].set_role(role, config_.worker_of(group));
}

void RequestPlacement::route(std::unique_ptr<Sequence> sequence) {
  const SequenceParams& params = sequence->params;
  sequence->source.reset();
  sequence->hands_over = router_.divides() && may_hand_over(*sequence) && transfer_pays(*sequence);
  const auto index =
      router_.place(sequence->id, sequence->tokens, {params.cache_salt, params.adapter},
                    params.max_tokens - sequence->output_len(),
                    sequence->hands_over ? Router::Part::kPrompt : Router::Part::kAll);
  if (!index) return queue_.add(std::move(sequence));
  to_group(*index, std::move(sequence));
}

void RequestPlacement::route_waiting() {
  if (!router_.any_open()) return;
  for (auto& sequence : queue_.take_all()) {
    if (trials_.on() && sequence->suspect()) {
      queue_.add(std::move(sequence));
    } else {
      route(std::move(sequence));
    }
  }
}

void RequestPlacement::to_group(int32_t index, std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  LiveRequest& live = live_.at(id);
  live.group = index;
  if (const Status added = groups_[index].add(std::move(sequence), live.given); !added)
    live_.end(id, FinishReason::kError, added.error());
}

void RequestPlacement::promise(int32_t from, PromisedRequest request) {
  const Sequence& sequence = *request.stands_for;
  const RequestId id = sequence.id;
  if (!live_.contains(id) || live_.at(id).group != from) return;
  const auto to = router_.promise(id, sequence.params.max_tokens - sequence.output_len());
  if (!to) return;
  GroupService& group = groups_[*to];
  if (kv_exchange_.joined(from, *to) && group.transfers().expect(std::move(request))) return;
  router_.take_promise(id);
}

void RequestPlacement::withdraw(RequestId id) {
  if (const auto to = router_.take_promise(id)) groups_[*to].transfers().forget(id);
}

void RequestPlacement::gone(RequestId id) {
  withdraw(id);
  router_.gone(id);
}

void RequestPlacement::leave_group(RequestId id) {
  router_.gone(id);
  live_.at(id).group = LiveRequest::kNoGroup;
}

int32_t RequestPlacement::hand_over(int32_t from, std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  const SequenceParams& params = sequence->params;
  leave_group(id);
  const auto promised = router_.promised(id);
  const auto to = router_.place(id, sequence->tokens, {params.cache_salt, params.adapter},
                                params.max_tokens - sequence->output_len(), Router::Part::kAnswer);
  if (promised && promised != to) groups_[*promised].transfers().forget(id);
  if (!to) {
    route(std::move(sequence));
    return LiveRequest::kNoGroup;
  }
  if (!kv_exchange_.joined(from, *to)) sequence->source.reset();
  to_group(*to, std::move(sequence));
  return *to;
}

void RequestPlacement::transfer_failed(std::unique_ptr<Sequence> sequence) {
  leave_group(sequence->id);
  route(std::move(sequence));
  for (const auto& each : groups_) each->pump();
}

void RequestPlacement::schedule(int32_t index, std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  if (const Status added = groups_[index].schedule(std::move(sequence), live_.at(id).given); !added)
    live_.end(id, FinishReason::kError, added.error());
}

int32_t RequestPlacement::remove(RequestId id) {
  const int32_t index = live_.at(id).group;
  index == LiveRequest::kNoGroup ? queue_.remove(id) : groups_[index].cancel(id);
  return index;
}

int32_t RequestPlacement::cancel(RequestId id) {
  if (const Sequence* sequence = find(id)) trials_.leaves(*sequence);
  return remove(id);
}

void RequestPlacement::end_where(const std::function<bool(const LiveRequest&)>& wanted,
                                 const Error& error) {
  for (const RequestId id : live_.ids_where(wanted)) {
    remove(id);
    live_.end(id, FinishReason::kError, error);
  }
}

const Sequence* RequestPlacement::find(RequestId id) const {
  const int32_t index = live_.at(id).group;
  return index == LiveRequest::kNoGroup ? queue_.find(id) : groups_[index].find(id);
}

void RequestPlacement::ready(int32_t index) {
  if (groups_[index].proving()) trials_.proving(index);
  open_or_close(index);
  route_waiting();
}

void RequestPlacement::good_canary(int32_t index, bool proved) {
  trials_.good_canary(index, proved);
  if (!proved) return;
  open_or_close(index);
  route_waiting();
}

bool RequestPlacement::go_on(int32_t index) {
  if (!trials_.reserves(index) || groups_[index].proving()) return false;
  trials_.go_on(groups_[index]);
  if (!trials_.on()) {  // what waited for them has gone to all groups
    for (int32_t other = 0; other < groups_.size(); ++other)
      if (other != index) groups_[other].pump();
  }
  return true;
}

size_t RequestPlacement::lost(int32_t index, GroupServiceHandlers::Lost lost, bool over) {
  kv_exchange_.lost(index);
  const size_t resumed = lost.served ? take_back(index, std::move(lost)) : 0;
  if (groups_[index].failed() && trials_.reserves(index) && !over) {
    const auto left =
        std::ranges::find_if(groups_, [](const auto& each) { return !each->failed(); });
    trials_.move_to(static_cast<int32_t>(left - groups_.begin()));
  }
  open_or_close_all();
  return resumed;
}

// What ran goes on with the tokens it has.
size_t RequestPlacement::take_back(int32_t index, GroupServiceHandlers::Lost lost) {
  std::vector<RequestId> ran;
  for (const auto& sequence : lost.requests) {
    withdraw(sequence->id);
    leave_group(sequence->id);
    if (sequence->admitted_before) ran.push_back(sequence->id);
  }
  trials_.took_back(std::move(lost.requests), lost.alone, lost.error);
  const auto resumed =
      std::ranges::count_if(ran, [this](RequestId id) { return live_.contains(id); });
  trials_.isolate(index, lost.error);
  if (queue_.size() > 0)
    log::info("{} requests wait for {}, {} of them go on where they were", queue_.size(),
              groups_.any_ready() ? "a group" : "the next workers", resumed);
  return static_cast<size_t>(resumed);
}

void RequestPlacement::give_up(const Sequence& sequence, const Error& error) {
  live_.end(sequence.id, FinishReason::kError,
            Error{ErrorCode::kUnavailable,
                  fmt::format("the request was running when its workers were lost, {} times; it is "
                              "not tried again. The last time: {}",
                              sequence.group_losses, error.message),
                  {}});
}

}  // namespace refrain
