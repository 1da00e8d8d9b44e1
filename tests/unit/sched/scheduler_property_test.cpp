// Random arrivals, cancels and tiny caches: whatever happens, every request ends once with the
// tokens of its solo run and nothing stays held (I1, I3, I5).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "ipc/protocol/state_blocks.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::solo_run;

struct Arrival {
  std::vector<TokenId> prompt;
  SequenceParams params;
};

// Few different tokens and lengths, so that prefixes are shared.
Arrival random_arrival(int longest, bool priorities = false) {
  Arrival arrival;
  const int length = *rc::gen::inRange(1, longest);
  const auto first = static_cast<TokenId>(1 + *rc::gen::inRange(0, 2) * 20);
  arrival.prompt = prompt_of(static_cast<size_t>(length), first);
  arrival.params.max_tokens = *rc::gen::inRange(1, 30);
  if (*rc::gen::inRange(0, 4) == 0) arrival.params.setup.repetition_penalty = 1.2f;
  if (*rc::gen::inRange(0, 4) == 0) {
    arrival.params.setup.min_tokens = *rc::gen::inRange(1, 20);
    arrival.params.setup.end_tokens = {0};
  }
  if (*rc::gen::inRange(0, 4) == 0) arrival.params.cache_salt = "other";
  if (priorities) arrival.params.priority = *rc::gen::inRange(-1, 2);
  arrival.params.setup.allowed_mask.resize(static_cast<size_t>(*rc::gen::inRange(0, 90)));
  return arrival;
}

constexpr int32_t kNoneIsLong = 48;

SchedulerOptions random_options() {
  SchedulerOptions options;
  options.max_num_seqs = *rc::gen::inRange(1, 7);
  options.block_size = *rc::gen::element(1, 2, 4, 8);
  options.max_model_len = 48;
  options.max_num_batched_tokens = *rc::gen::element(3, 8, 16, 64);
  options.row_tile = *rc::gen::element(1, 1, 4, 8);
  options.num_drafts = *rc::gen::element(0, 0, 1, 3, 7);
  options.draft_model = options.num_drafts > 0 && *rc::gen::arbitrary<bool>();
  const int32_t longest = 48 + (options.draft_model ? 3 : 2) * options.num_drafts;
  options.groups =
      testing::full_attention(2 + longest / options.block_size + *rc::gen::inRange(0, 30));
  if (*rc::gen::arbitrary<bool>()) {
    const int32_t window = *rc::gen::inRange(1, 40);
    const int32_t ahead = options.draft_model ? options.num_drafts : 0;
    const auto needed = ipc::most_blocks(window, longest, options.max_num_batched_tokens + ahead,
                                         options.block_size);
    options.groups.push_back({.name = "sliding_attention",
                              .window = window,
                              .num_blocks = 1 + needed + *rc::gen::inRange(0, 20)});
  }
  if (options.draft_model)
    options.groups.push_back(
        {.name = "draft.full_attention",
         .num_blocks = 2 + longest / options.block_size + *rc::gen::inRange(0, 30)});
  if (options.num_drafts == 0 && *rc::gen::inRange(0, 4) == 0)  // states are not rolled back
    options.groups.push_back({.name = "recurrent",
                              .kind = ipc::StateKind::kSlot,
                              .num_blocks = *rc::gen::element<int64_t>(0, 2, 9)});
  options.enable_prefix_caching = *rc::gen::arbitrary<bool>();
  options.long_prefill_token_threshold = *rc::gen::element(0, 2, 10, 20, kNoneIsLong);
  if (!options.draft_model) options.split_prefill = *rc::gen::element(1, 1, 2, 5);
  options.split_prefill_tokens = *rc::gen::element(1, 4, 9);
  options.eos_token_ids = {0};
  // Room for a few setups, or for all that can come.
  options.max_step_bytes = *rc::gen::element<size_t>(2000, 3000, ipc::kMaxStepBytes);
  return options;
}

RC_GTEST_PROP(SchedulerProperty, EveryRequestEndsOnceWithItsOwnTokens, ()) {
  const SchedulerOptions options = random_options();
  const uint64_t eos_every = *rc::gen::element<uint64_t>(0, 10);
  Harness harness(options, *rc::gen::inRange(1, 4), eos_every);
  std::map<RequestId, Arrival> arrivals;
  std::set<RequestId> cancelled;
  std::vector<RequestId> first_token_order;
  RequestId next_id = 1;
  const int actions = *rc::gen::inRange(5, 80);
  for (int i = 0; i < actions; ++i) {
    harness.scheduler.limit_chunks(
        {.step = *rc::gen::element(3, 1000), .long_beside_decodes = *rc::gen::element(1, 4, 1000)});
    switch (*rc::gen::inRange(0, 6)) {
      case 0:
      case 1: {
        Arrival arrival = random_arrival(40, /*priorities=*/true);
        RC_ASSERT(harness.add(next_id, arrival.prompt, arrival.params).has_value());
        arrivals[next_id++] = std::move(arrival);
        break;
      }
      case 2:
        if (next_id > 1) {
          const RequestId id = *rc::gen::inRange<RequestId>(1, next_id);
          if (harness.scheduler.cancel(id)) cancelled.insert(id);
          RC_ASSERT(!harness.scheduler.cancel(id));
        }
        break;
      case 3:
        harness.receive();
        break;
      default:
        harness.pump();
    }
  }
  RC_ASSERT(harness.run());
  RC_ASSERT(harness.all_blocks_free());
  for (const auto& [id, arrival] : arrivals) {
    const testing::Outcome& outcome = harness.outcomes[id];
    const std::vector<TokenId> alone =
        solo_run(arrival.prompt, static_cast<size_t>(arrival.params.max_tokens),
                 static_cast<size_t>(options.max_model_len), 1000, eos_every, arrival.params.setup);
    if (cancelled.contains(id)) {
      RC_ASSERT(outcome.finishes == 0);
      RC_ASSERT(outcome.output.size() <= alone.size());
      RC_ASSERT(std::equal(outcome.output.begin(), outcome.output.end(), alone.begin()));
    } else {
      RC_ASSERT(outcome.finishes == 1);
      RC_ASSERT(outcome.output == alone);
    }
  }
  RC_ASSERT(!::testing::Test::HasFailure());
}

// Where no prompt is long the first to come is the first to have a token, whatever the pressure:
// nobody is overtaken at the door. And the oldest is never put back. A prompt that is cut where a
// checkpoint is kept leaves room in its step for who comes next.
RC_GTEST_PROP(SchedulerProperty, FirstTokensComeInOrderOfArrivalAndTheOldestIsNeverPreempted, ()) {
  SchedulerOptions options = random_options();
  std::erase_if(options.groups,
                [](const ipc::StateGroup& group) { return group.kind == ipc::StateKind::kSlot; });
  const bool in_order = options.long_prefill_token_threshold == kNoneIsLong;
  Harness harness(options, *rc::gen::inRange(1, 4));
  const int count = *rc::gen::inRange(2, 20);
  for (RequestId id = 1; id <= static_cast<RequestId>(count); ++id) {
    Arrival arrival = random_arrival(40);
    arrival.params.setup.seed = id;  // tells the steps' setups apart
    RC_ASSERT(harness.add(id, arrival.prompt, arrival.params).has_value());
  }
  const RequestId oldest_without_token = 1;
  for (int round = 0;; ++round) {
    RC_ASSERT(round < 10000);  // it ends, whoever puts back whom
    harness.pump();
    const bool more = harness.receive();
    bool gap = false;
    for (RequestId id = 1; id <= static_cast<RequestId>(count); ++id) {
      const bool has_token = !harness.outcomes[id].output.empty();
      RC_ASSERT(
          !(in_order && gap && has_token && id > oldest_without_token + options.max_num_seqs));
      gap = gap || !has_token;
    }
    if (!more) break;
  }
  std::vector<uint64_t> entered;
  for (const ipc::Step& step : harness.steps)
    for (const ipc::SlotSetup& setup : step.setups) entered.push_back(setup.seed);
  RC_ASSERT(std::count(entered.begin(), entered.end(), 1u) == 1);
  std::vector<uint64_t> firsts;
  for (const uint64_t id : entered)
    if (std::find(firsts.begin(), firsts.end(), id) == firsts.end()) firsts.push_back(id);
  RC_ASSERT(!in_order || std::is_sorted(firsts.begin(), firsts.end()));
  RC_ASSERT(firsts.size() == static_cast<size_t>(count));
}

}  // namespace
}  // namespace refrain
