#pragma once
// A model served in this process: the scheduler's steps run on the ranks of one group, each in a
// thread of its own, two steps in flight; every rank gives the same tokens. With several execution
// contexts each has a scheduler, slots and blocks of its own.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/config/model/model_config.h"
#include "runtime/sched/scheduler.h"
#include "worker/device/factory/factory.h"
#include "worker/runner/program_runner.h"

namespace refrain::tests {

struct ServedOptions {
  ipc::WorkerConfig config = default_config();
  worker::BuildModel build = worker::build_model;
  std::filesystem::path draft;      // of config.draft_model
  std::vector<int64_t> num_blocks;  // by state group; empty: as many as fit
  bool prefix_caching = true;
  double audit_rate = 0;
  int32_t split_prefill_tokens = 256;
  std::optional<int64_t> cascade_keys;  // that a step must spare; empty: what the worker says
  bool poison = false;
  int contexts = 1;
  int replica = 0;  // of those that step together
  std::string replicas_token = {};
  std::string device =
      std::getenv("REFRAIN_TEST_DEVICE") ? std::getenv("REFRAIN_TEST_DEVICE") : "host";

  static ipc::WorkerConfig default_config() {
    ipc::WorkerConfig config;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 16;
    config.max_model_len = 96;
    config.block_size = 4;
    config.dtype = "float32";
    config.has_capture_sizes = true;
    config.cudagraph_capture_sizes = {1, 2, 4, 8, 16};
    config.kv_cache_memory_bytes = 16 << 20;
    return config;
  }
};

// A step, and the execution context that runs it.
struct ServedStep {
  ipc::Step step;
  size_t context = 0;
};

// A rank: what its thread is told, in order, and its answers.
class ServedRank {
 public:
  ServedRank(const std::filesystem::path& model, const ServedOptions& options, int rank,
             const std::string& token)
      : answers_(static_cast<size_t>(options.contexts)), thread_([=, this] {
          try {
            serve(model, options, rank, token);
          } catch (const std::exception& error) {
            fail(error.what());
          }
        }) {}
  ~ServedRank() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::vector<ipc::StateGroup> groups() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !groups_.empty() || !error_.empty(); });
    return groups_;
  }
  void begin(std::vector<int64_t> num_blocks) {
    const std::lock_guard lock(mutex_);
    num_blocks_ = std::move(num_blocks);
    changed_.notify_all();
  }
  ipc::Ready ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_.has_value() || !error_.empty(); });
    return ready_.value_or(ipc::Ready{});
  }
  void tell(std::vector<ServedStep> steps) {
    const std::lock_guard lock(mutex_);
    for (ServedStep& step : steps) steps_.push_back(std::move(step));
    changed_.notify_all();
  }
  std::optional<ipc::StepResult> answer(size_t context) {
    std::unique_lock lock(mutex_);
    std::deque<ipc::StepResult>& answers = answers_[context];
    changed_.wait(lock, [&] { return !answers.empty() || !error_.empty(); });
    if (answers.empty()) return std::nullopt;
    ipc::StepResult result = std::move(answers.front());
    answers.pop_front();
    return result;
  }
  std::string error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void serve(const std::filesystem::path& model, const ServedOptions& options, int rank,
             const std::string& token) {
    auto device =
        worker::create_device(options.device, {options.contexts, "", 0, false}, {0, 1, 0});
    if (!device) throw FatalError(device.error().message);
    auto config = load_model_config(model);
    if (!config) throw FatalError(config.error().message);
    worker::RunnerOptions of{model, *config, options.config, rank, token, options.poison, false};
    of.build = options.build;
    of.contexts = options.contexts;
    of.replica = options.replica;
    of.replicas_token = options.replicas_token;
    if (options.config.draft_model) {
      of.draft_directory = options.draft;
      of.draft = *load_model_config(options.draft);
    }
    auto runner = worker::ProgramRunner::create(of, **device, {});
    if (!runner) throw FatalError(runner.error().message);
    auto loaded = (*runner)->load();
    if (!loaded) throw FatalError(loaded.error().message);
    std::unique_lock lock(mutex_);
    groups_ = loaded->groups;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !num_blocks_.empty() || stopped_; });
    if (stopped_) return;
    lock.unlock();
    for (const Status& status : {(*runner)->init_cache(num_blocks_), (*runner)->capture()})
      if (!status) throw FatalError(status.error().message);
    auto ready = (*runner)->back_cache();
    if (!ready) throw FatalError(ready.error().message);
    lock.lock();
    ready_ = std::move(*ready);
    changed_.notify_all();
    while (true) {
      changed_.wait(lock, [this] { return !steps_.empty() || stopped_; });
      if (stopped_) return;
      const std::deque<ServedStep> steps = std::exchange(steps_, {});
      lock.unlock();
      // What it was told at once runs at once.
      for (const ServedStep& each : steps) (*runner)->runner(each.context).submit(each.step);
      for (const ServedStep& each : steps) {
        ipc::StepResult result = (*runner)->runner(each.context).wait();
        lock.lock();
        answers_[each.context].push_back(std::move(result));
        changed_.notify_all();
        lock.unlock();
      }
      lock.lock();
    }
  }
  void fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    error_ = what;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ipc::StateGroup> groups_;
  std::vector<int64_t> num_blocks_;
  std::optional<ipc::Ready> ready_;
  std::deque<ServedStep> steps_;
  std::vector<std::deque<ipc::StepResult>> answers_;  // by context
  std::string error_;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses all of them
};

class Served {
 public:
  Served(const std::filesystem::path& model, ServedOptions options) : options_(std::move(options)) {
    static std::atomic<int> group = 0;  // several may start at the same time
    const std::string token = fmt::format("served-{}-{}", getpid(), ++group);
    for (int rank = 0; rank < options_.config.tensor_parallel_size; ++rank)
      ranks_.push_back(std::make_unique<ServedRank>(model, options_, rank, token));
    std::vector<ipc::StateGroup> groups = ranks_[0]->groups();
    for (const auto& rank : ranks_) {
      const auto theirs = rank->groups();
      if (theirs.size() != groups.size()) throw FatalError("a rank failed: " + rank->error());
      for (size_t i = 0; i < groups.size(); ++i)
        groups[i].num_blocks = std::min(groups[i].num_blocks, theirs[i].num_blocks);
    }
    for (size_t i = 0; i < options_.num_blocks.size(); ++i)
      groups[i].num_blocks = options_.num_blocks[i];
    for (ipc::StateGroup& each : groups)
      if (options_.cascade_keys && each.cascade_keys > 0)
        each.cascade_keys = *options_.cascade_keys;
    std::vector<int64_t> blocks;
    for (const ipc::StateGroup& each : groups) blocks.push_back(each.num_blocks);
    for (const auto& rank : ranks_) rank->begin(blocks);
    for (const auto& rank : ranks_) ready = rank->ready();
    for (const auto& rank : ranks_)
      if (!rank->error().empty()) throw FatalError(rank->error());
    for (int i = 0; i < options_.contexts; ++i) contexts_.push_back(make_context(i, groups));
    scheduler = contexts_[0].scheduler.get();
  }

  void add(RequestId id, const std::vector<TokenId>& prompt, int count,
           const std::string& salt = "") {
    SequenceParams params;
    params.max_tokens = count;
    params.ignore_eos = true;
    params.cache_salt = salt;
    params.setup.temperature = 0.0f;
    add(std::make_unique<Sequence>(id, prompt, std::move(params)));
  }
  void add(std::unique_ptr<Sequence> sequence) {
    Scheduler& of = *contexts_[num_added_++ % contexts_.size()].scheduler;
    const TokenDigest digest = digest_of(sequence->tokens);
    const Status added = of.add(std::move(sequence), digest);
    ASSERT_TRUE(added.has_value()) << (added ? "" : added.error().message);
  }
  // Until all have ended, or so many steps were answered: then others are still in flight.
  void run(int most_steps = std::numeric_limits<int>::max()) {
    while (true) {
      tell_steps();
      bool any = false;
      for (size_t i = 0; i < contexts_.size(); ++i) {
        if (contexts_[i].in_flight == 0) continue;
        any = true;
        if (most_steps-- == 0 || !receive(i)) return;
        --contexts_[i].in_flight;
      }
      if (!any) break;
    }
    for (const Context& context : contexts_) EXPECT_EQ(context.scheduler->num_unfinished(), 0u);
  }

  // For replicas, whose steps somebody else plans: one step, and the answer to the oldest.
  void tell(const ipc::Step& step) {
    for (const auto& rank : ranks_) rank->tell({{step, 0}});
  }
  bool receive() { return receive(0); }

  struct Outcome {
    std::vector<TokenId> tokens;
    int32_t cached = 0;
  };
  std::map<RequestId, Outcome> outcomes;
  std::map<std::string, int> modes;  // steps by runtime mode
  std::map<int32_t, int> parts;      // steps by part of a cut run
  int audited = 0;
  ipc::Ready ready;
  Scheduler* scheduler = nullptr;  // of the first context

 private:
  // Its slots and blocks are a part of the worker's: from these on.
  struct Context {
    std::unique_ptr<Scheduler> scheduler;
    SlotId first_slot = 0;
    std::vector<BlockId> blocks_before;  // by state group
    int in_flight = 0;
  };

  Context make_context(int index, const std::vector<ipc::StateGroup>& groups) const {
    Context context;
    SchedulerOptions sched;
    sched.max_num_seqs = options_.config.max_num_seqs / options_.contexts;
    sched.max_num_batched_tokens = options_.config.max_num_batched_tokens;
    sched.max_model_len = options_.config.max_model_len;
    sched.block_size = options_.config.block_size;
    sched.groups = groups;
    for (ipc::StateGroup& group : sched.groups) {
      const int64_t share = (group.num_blocks - 1) / options_.contexts;
      context.blocks_before.push_back(static_cast<BlockId>(share * index));
      group.num_blocks = 1 + share;
    }
    context.first_slot = sched.max_num_seqs * index;
    sched.enable_prefix_caching = options_.prefix_caching;
    sched.audit_rate = options_.audit_rate;
    sched.split_prefill = options_.config.split_prefill;
    sched.split_prefill_tokens = options_.split_prefill_tokens;
    sched.num_drafts = options_.config.num_speculative_tokens;
    sched.draft_model = options_.config.draft_model;
    sched.draft_head = options_.config.draft_head != ipc::DraftHead::kNone;
    context.scheduler = std::make_unique<Scheduler>(std::move(sched));
    return context;
  }

  // Two steps of each context are in flight where there is something to do.
  void tell_steps() {
    std::vector<ServedStep> steps;
    for (size_t i = 0; i < contexts_.size(); ++i) {
      for (; contexts_[i].in_flight < 2; ++contexts_[i].in_flight) {
        const StepPlan* plan = contexts_[i].scheduler->schedule();
        if (plan == nullptr) break;
        const ipc::Run& run = plan->step().runs.front();
        if (run.parts > 1) ++parts[run.part];
        steps.push_back({of_worker(plan->step(), contexts_[i]), i});
      }
    }
    if (steps.empty()) return;
    for (const auto& rank : ranks_) rank->tell(steps);
  }

  static ipc::Step of_worker(ipc::Step step, const Context& context) {
    for (ipc::Run& run : step.runs)
      for (SlotId& slot : run.rows.slot) slot += context.first_slot;
    for (ipc::SlotSetup& setup : step.setups) setup.slot += context.first_slot;
    for (size_t group = 0; group < step.blocks.size(); ++group) {
      for (SlotId& slot : step.blocks[group].slot) slot += context.first_slot;
      for (BlockId& block : step.blocks[group].block) block += context.blocks_before[group];
    }
    return step;
  }

  bool receive(size_t context) {
    std::vector<ipc::StepResult> results;
    for (const auto& rank : ranks_) {
      auto result = rank->answer(context);
      EXPECT_TRUE(result.has_value()) << rank->error();
      if (!result) return false;
      results.push_back(std::move(*result));
      EXPECT_EQ(results.back().tokens, results[0].tokens) << "a rank has other tokens";
      EXPECT_EQ(results.back().audit.first, "");
    }
    audited += results[0].audit.audited ? 1 : 0;
    ++modes[ipc::to_string(results[0].mode)];
    std::vector<TokenEvent> events;
    const Status status = contexts_[context].scheduler->update(results[0], events);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    for (const TokenEvent& event : events) {
      outcomes[event.id].tokens.push_back(event.token);
      outcomes[event.id].cached = event.cached_tokens;
    }
    return status.has_value();
  }

  ServedOptions options_;
  std::vector<std::unique_ptr<ServedRank>> ranks_;
  std::vector<Context> contexts_;
  size_t num_added_ = 0;
};

}  // namespace refrain::tests
