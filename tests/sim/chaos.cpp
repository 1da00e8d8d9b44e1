#include "tests/sim/chaos.h"

#include <algorithm>

namespace refrain::sim {
namespace {

std::chrono::milliseconds ms(uint64_t count) {
  return std::chrono::milliseconds(static_cast<int64_t>(count));
}

void choose_server(ManualScheduler& scheduler, ClusterOptions& cluster) {
  EngineConfig& config = cluster.config;
  config.worker.tensor_parallel_size = static_cast<int32_t>(1 + scheduler.random(3));
  config.worker.max_num_seqs = static_cast<int32_t>(2 + scheduler.random(5));
  config.worker.max_num_batched_tokens = static_cast<int32_t>(8 + 8 * scheduler.random(3));
  config.worker.max_model_len = 64;
  config.worker.block_size = 4;
  config.worker.seed = scheduler.random(1000);
  config.enable_prefix_caching = scheduler.random(4) > 0;
  config.async_scheduling = scheduler.random(4) > 0;
  config.enable_chunked_prefill = scheduler.random(5) > 0;
  if (scheduler.random(5) == 0) config.max_queue = static_cast<int32_t>(5 + scheduler.random(20));
  cluster.num_kv_blocks = static_cast<int64_t>(18 + scheduler.random(20));
  cluster.model.eos_every = scheduler.random(2) == 0 ? 25 : 0;
  cluster.watched = scheduler.random(4) > 0;
  if (scheduler.random(8) == 0) cluster.high_water_mark = 16;
}

void choose_line(ManualScheduler& scheduler, ipc::FaultProgram& line) {
  const auto rate = [&] {
    return scheduler.random(3) == 0 ? static_cast<uint32_t>(1 + scheduler.random(8)) : 0u;
  };
  line.drop = rate();
  line.duplicate = rate();
  line.corrupt = rate();
  line.truncate = rate();
  line.delay = rate();
  line.max_delay = ms(1 + scheduler.random(2000));
}

bool clean(const ipc::FaultProgram& line) {
  return line.drop + line.duplicate + line.corrupt + line.truncate + line.delay == 0;
}

}  // namespace

Plan make_plan(ManualScheduler& scheduler) {
  Plan plan;
  choose_server(scheduler, plan.cluster);
  const bool peaceful = scheduler.random(8) == 0;
  if (!peaceful && scheduler.random(2) == 0) choose_line(scheduler, plan.cluster.line);
  if (!peaceful) plan.strikes = static_cast<int>(scheduler.random(6));
  plan.load.requests = static_cast<int>(5 + scheduler.random(50));
  plan.load.over = ms(200 + scheduler.random(6000));
  plan.load.cancels = scheduler.random(3) == 0 ? 400 : 80;
  plan.load.plain = scheduler.random(4) == 0;
  plan.load.max_model_len = plan.cluster.config.worker.max_model_len;
  if (!plan.cluster.config.enable_chunked_prefill)
    plan.load.longest_prompt = std::min(40, plan.cluster.config.worker.max_num_batched_tokens);
  plan.harmless = plan.strikes == 0 && clean(plan.cluster.line);
  return plan;
}

Chaos::Chaos(ManualScheduler& scheduler, Cluster& cluster, const Plan& plan)
    : scheduler_(scheduler),
      cluster_(cluster),
      plan_(plan),
      executor_(scheduler.make_executor("chaos")) {}

void Chaos::start(int strikes, Duration over) {
  const auto range =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(over).count());
  for (int i = 0; i < strikes; ++i)
    executor_->post_after(std::chrono::microseconds(scheduler_.random(range)),
                          [this] { strike(); });
}

void Chaos::strike() {
  const auto rank = static_cast<int32_t>(
      scheduler_.random(static_cast<uint64_t>(plan_.cluster.config.worker.tensor_parallel_size)));
  switch (scheduler_.random(13)) {
    case 0:
    case 1:
      return cluster_.kill_worker(rank);
    case 2:
      return cluster_.freeze_worker(rank, ms(50 + scheduler_.random(10'000)));
    case 3:
      return cluster_.cut_worker(rank, ms(10 + scheduler_.random(8'000)));
    case 4:
      return cluster_.slow_worker(rank, ms(scheduler_.random(400)), ms(scheduler_.random(5'000)));
    case 5:
      return cluster_.fault_step(rank, StepFault::kSpin);
    case 6:
      return cluster_.fault_step(rank, StepFault::kDeviceError);
    case 7:
      return cluster_.fault_step(rank, StepFault::kOtherKey);
    case 8:
      return cluster_.fault_step(
          0, scheduler_.random(2) == 0 ? StepFault::kTokenTooLarge : StepFault::kRowMissing);
    case 9:
      return cluster_.greet_again(rank);
    case 10:
      return cluster_.replay(rank);
    default:
      return strike_coordinator();
  }
}

void Chaos::strike_coordinator() {
  if (scheduler_.random(2) == 0) {
    cluster_.kill_coordinator(ms(20 + scheduler_.random(8'000)));
  } else {
    cluster_.freeze_coordinator(ms(20 + scheduler_.random(7'000)));
  }
}

}  // namespace refrain::sim
