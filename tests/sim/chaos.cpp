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
  if (scheduler.random(2) == 0)
    config.worker.num_speculative_tokens = static_cast<int32_t>(1 + scheduler.random(6));
  const int32_t drafts = config.worker.num_speculative_tokens;
  config.worker.draft_model = drafts > 0 && drafts % 2 == 0;  // else by prompt lookup
  const int64_t beyond = ((config.worker.draft_model ? 3 : 2) * drafts + 3) / 4;
  cluster.num_kv_blocks = beyond + static_cast<int64_t>(18 + scheduler.random(20));
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
  plan.cluster.config.drain_timeout = static_cast<double>(scheduler.random(5));
  const bool peaceful = scheduler.random(8) == 0;
  plan.cluster.calm = !peaceful && scheduler.random(8) == 0;
  // What a rank says of its pulls would fill a short queue while the coordinator is away.
  if (plan.cluster.calm) plan.cluster.high_water_mark = ClusterOptions().high_water_mark;
  if (!peaceful && !plan.cluster.calm && scheduler.random(2) == 0)
    choose_line(scheduler, plan.cluster.line);
  if (!peaceful) plan.strikes = static_cast<int>(scheduler.random(6));
  if (plan.cluster.calm) plan.strikes = static_cast<int>(1 + scheduler.random(3));
  plan.load.requests = static_cast<int>(5 + scheduler.random(50));
  plan.load.over = ms(200 + scheduler.random(6000));
  plan.load.cancels = scheduler.random(3) == 0 ? 400 : 80;
  plan.load.plain = scheduler.random(4) == 0;
  plan.load.max_model_len = plan.cluster.config.worker.max_model_len;
  if (!plan.cluster.config.enable_chunked_prefill)
    plan.load.longest_prompt = std::min(40, plan.cluster.config.worker.max_num_batched_tokens);
  if (!peaceful && !plan.cluster.calm && scheduler.random(4) == 0) {
    plan.load.poison = static_cast<int>(1 + scheduler.random(2));
    if (scheduler.random(2) == 0) {  // nothing else goes wrong
      plan.strikes = 0;
      plan.cluster.line = {};
    }
  }
  plan.harmless =
      (plan.strikes == 0 || plan.cluster.calm) && clean(plan.cluster.line) && plan.load.poison == 0;
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

int32_t Chaos::any_rank() {
  return static_cast<int32_t>(scheduler_.random(static_cast<uint64_t>(cluster_.num_places())));
}

void Chaos::strike() {
  if (cluster_.healed()) return;
  if (plan_.cluster.calm) return strike_calmly();
  switch (scheduler_.random(8)) {
    case 0:
      return strike_coordinator();
    case 1:
    case 2:
      return strike_succession();
    default:
      return strike_rank();
  }
}

// Kills the coordinator when all ranks hold the graphs of a group, and nothing else happens but
// that some steps take long, so that the next one finds them under way.
void Chaos::strike_calmly() {
  const bool slow = scheduler_.random(2) == 0;
  if (slow) cluster_.slow_worker(any_rank(), ms(600), ms(300));
  executor_->post_after(ms(scheduler_.random(300)), [this, slow] {
    if (!cluster_.healed() && cluster_.adoptable())
      cluster_.kill_coordinator(ms(20 + scheduler_.random(slow ? 300 : 8'000)));
  });
}

void Chaos::strike_rank() {
  if (cluster_.healed()) return;
  const int32_t rank = any_rank();
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
          rank - rank % plan_.cluster.config.worker.tensor_parallel_size,  // a first rank
          scheduler_.random(2) == 0 ? StepFault::kTokenTooLarge : StepFault::kRowMissing);
    case 9:
      return cluster_.greet_again(rank);
    case 10:
      return cluster_.hang_next_start(rank);
    case 11:
      return restart_group();
    default:
      return cluster_.replay(rank);
  }
}

void Chaos::restart_group() {
  const EngineConfig& config = plan_.cluster.config;
  const auto group =
      static_cast<int32_t>(scheduler_.random(static_cast<uint64_t>(config.num_groups())));
  std::optional<ipc::GroupRole> role;
  if (config.has_roles() && scheduler_.random(2) == 0)
    role = static_cast<ipc::GroupRole>(scheduler_.random(3));
  cluster_.restart_group(group, role);
}

void Chaos::strike_coordinator() {
  if (scheduler_.random(2) == 0) {
    cluster_.kill_coordinator(absence());
  } else {
    cluster_.freeze_coordinator(ms(20 + scheduler_.random(7'000)));
  }
}

// Seldom longer than workers wait for the next coordinator.
Duration Chaos::absence() {
  return ms(20 + scheduler_.random(scheduler_.random(10) == 0 ? 40'000 : 8'000));
}

// The coordinator is killed with steps in flight that take long, and more goes wrong while its
// ranks wait or are adopted: the next one may find some of them dead, stopped, cut off or in the
// middle of the steps of another epoch, is killed itself, or has another model or configuration.
void Chaos::strike_succession() {
  const uint64_t before = scheduler_.random(8);
  if (before < 4)
    cluster_.slow_worker(any_rank(), ms(scheduler_.random(4'000)), ms(scheduler_.random(10'000)));
  if (before == 4) cluster_.fault_step(any_rank(), StepFault::kSpin);
  const std::chrono::milliseconds wait = ms(scheduler_.random(1'000));
  executor_->post_after(wait, [this] {
    if (cluster_.healed()) return;
    const Duration away = absence();
    const uint64_t kind = scheduler_.random(5);
    cluster_.kill_coordinator(away, kind == 0   ? Restart::kOtherModel
                                    : kind == 1 ? Restart::kOtherConfig
                                                : Restart::kAsBefore);
    const auto until = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(away).count() + 1'500);
    for (uint64_t more = scheduler_.random(3); more > 0; --more)
      executor_->post_after(ms(scheduler_.random(until)), [this] { strike_rank(); });
    if (scheduler_.random(4) == 0)
      executor_->post_after(ms(scheduler_.random(until)), [this] {
        if (!cluster_.healed()) cluster_.kill_coordinator(absence());
      });
  });
}

}  // namespace refrain::sim
