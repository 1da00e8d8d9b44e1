// Coordinator CPU per step: schedule, encode the step, decode the answers of the ranks, update.
// Prints one JSON object per case (thread CPU time, so that a busy machine does not matter).
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "ipc/protocol/codec.h"
#include "runtime/base/build_info.h"
#include "runtime/base/check.h"
#include "runtime/base/json.h"
#include "runtime/sched/scheduler.h"

namespace refrain {
namespace {

constexpr double kLimitUs = 10;  // at 256 requests

double cpu_us() {
  timespec now{};
  REFRAIN_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, "no CPU clock");
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

SchedulerOptions options(int32_t requests) {
  SchedulerOptions options;
  options.max_num_seqs = requests;
  options.max_num_batched_tokens = 8192;
  options.max_model_len = 4096;
  options.groups = {{.name = "full_attention", .num_blocks = 1 + int64_t{requests} * 256}};
  return options;
}

std::vector<std::byte> answer(const ipc::Step& step, int32_t rank) {
  ipc::StepResult result;
  result.step = step.step;
  result.rank = rank;
  result.num_tokens = result.key_tokens = static_cast<int32_t>(ipc::num_tokens(step));
  if (rank == 0) {
    result.token_offsets.push_back(0);
    for (const uint8_t flags : step.runs.front().rows.flags) {
      if ((flags & ipc::kSamples) != 0) result.tokens.push_back(static_cast<TokenId>(step.step));
      result.token_offsets.push_back(static_cast<int32_t>(result.tokens.size()));
    }
  }
  std::vector<std::byte> frame;
  ipc::encode_frame(result, {1, step.step}, frame);
  return frame;
}

// Decodes of `requests` running requests, two steps deep, answered by `ranks` ranks.
nlohmann::json decode_case(int32_t requests, int32_t ranks, size_t runs) {
  Scheduler scheduler(options(requests));
  for (int32_t i = 0; i < requests; ++i) {
    SequenceParams params;
    params.max_tokens = 4000;
    const std::vector<TokenId> prompt(32, static_cast<TokenId>(i));
    const auto id = static_cast<RequestId>(i + 1);
    const Status added =
        scheduler.add(std::make_unique<Sequence>(id, prompt, params), digest_of(prompt));
    REFRAIN_CHECK(added.has_value(), "the request was refused");
  }
  std::vector<std::vector<std::vector<std::byte>>> in_flight;
  std::vector<std::byte> frame;
  std::vector<TokenEvent> events;
  std::vector<double> samples;
  const auto send = [&] {
    const StepPlan* plan = scheduler.schedule();
    REFRAIN_CHECK(plan != nullptr, "nothing to schedule");
    ipc::encode_frame(plan->message, {1, plan->step().step}, frame);
    return plan;
  };
  const auto run = [&](const StepPlan* plan) {  // the ranks' work, not measured
    auto& answers = in_flight.emplace_back();
    for (int32_t rank = 0; rank < ranks; ++rank) answers.push_back(answer(plan->step(), rank));
  };
  run(send());
  for (size_t i = 0; i < runs + 50; ++i) {
    const double start = cpu_us();
    const StepPlan* plan = send();
    const double sent = cpu_us();
    run(plan);
    const double resumed = cpu_us();
    for (const auto& bytes : in_flight.front()) {
      auto decoded = ipc::decode_frame(bytes);
      auto& result = std::get<ipc::StepResult>(decoded->message);
      if (result.rank > 0) continue;
      events.clear();
      const Status updated = scheduler.update(result, events);
      REFRAIN_CHECK(updated.has_value(), "the answer was refused");
    }
    const double end = cpu_us();
    in_flight.erase(in_flight.begin());
    if (i >= 50) samples.push_back((sent - start) + (end - resumed));
  }
  std::ranges::sort(samples);
  const double median = samples[samples.size() / 2];
  return {{"case", "coordinator_step"},
          {"requests", requests},
          {"tp", ranks},
          {"commit", build_id()},
          {"runs", runs},
          {"unit", "us_cpu"},
          {"min", samples.front()},
          {"median", median},
          {"p99", samples[samples.size() * 99 / 100]},
          {"achieved", median},
          {"limit", kLimitUs},
          {"limit_source", "target for 256 requests"}};
}

}  // namespace
}  // namespace refrain

int main() {
  for (const int32_t requests : {1, 16, 64, 256})
    std::puts(refrain::decode_case(requests, 2, 2000).dump().c_str());
}
