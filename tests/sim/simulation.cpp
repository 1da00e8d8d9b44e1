#include "tests/sim/simulation.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "tests/sim/chaos.h"
#include "tests/sim/ledger.h"

namespace refrain::sim {
namespace {

// A request may wait for the longest deadline of a step (120 s), and for a few restarts.
constexpr Duration kPatience = std::chrono::seconds(200);
// Workers that a request hangs before much is known of their steps: 30 s, 60 s, 120 s for each.
constexpr Duration kPoisonPatience = std::chrono::seconds(600);
constexpr Duration kLongestFreeze = std::chrono::seconds(10);  // of the coordinator (chaos.cpp)
constexpr size_t kLossesOfPoison = 3;  // until the request is found: two, and one alone
constexpr Duration kLookAround = std::chrono::milliseconds(100);

std::shared_ptr<const text::Tokenizer> shared_tokenizer() {
  static const auto tokenizer = [] {
    auto loaded = text::Tokenizer::load("tests/fixtures/models/qwen2");
    REFRAIN_CHECK(loaded.has_value(), "{}", loaded.error().message);
    return std::make_shared<const text::Tokenizer>(std::move(*loaded));
  }();
  return tokenizer;
}

// The product's own log, as lines of the event log.
class EventLogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit EventLogSink(ManualScheduler& scheduler) : scheduler_(scheduler) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    scheduler_.note(
        fmt::format("| log: {}", fmt::string_view(message.payload.data(), message.payload.size())));
  }
  void flush_() override {}
  ManualScheduler& scheduler_;
};

// While it lives, log::... writes into the event log.
class CapturedLog {
 public:
  explicit CapturedLog(ManualScheduler& scheduler) : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("simulation", std::make_shared<EventLogSink>(scheduler)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }

 private:
  std::shared_ptr<spdlog::logger> before_;
};

// Every third seed serves more LoRA adapters than there are places, every fourth has two groups,
// half of which step together, and of every fourth the one is for prompts and the other for
// answers.
Plan with_more(Plan plan, uint64_t seed) {
  if (seed % 4 == 1) plan.cluster.config.data_parallel_size = 2;
  if (seed % 4 == 1 && seed / 8 % 2 == 1) plan.cluster.steps_together = true;
  if (seed % 4 == 3) {
    plan.cluster.config.prefill_groups = plan.cluster.config.decode_groups = 1;
    plan.cluster.config.worker.kv_transfer = true;
    plan.cluster.config.kv_transfer_policy = "always";
    plan.cluster.config.kv_transfer_timeout = 2;
  }
  if (seed % 3 == 0) plan.cluster.config.worker.max_loras = 1 + static_cast<int32_t>(seed / 3 % 2);
  return plan;
}

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : scheduler_(seed),
        log_(scheduler_),
        plan_(with_more(make_plan(scheduler_), seed)),
        cluster_(scheduler_, plan_.cluster, shared_tokenizer()),
        clients_(scheduler_, cluster_, plan_.load, shared_tokenizer()),
        chaos_(scheduler_, cluster_, plan_) {}

  SimReport run() {
    try {
      live();
    } catch (const std::exception& error) {
      report_.faults.push_back(fmt::format("exception: {}", error.what()));
    }
    add(cluster_.violations);
    for (const Succession& each : cluster_.successions()) add(each.violations);
    add(clients_.violations);
    count();
    report_.log = scheduler_.log();
    return std::move(report_);
  }

 private:
  void live() {
    cluster_.start();
    clients_.start();
    chaos_.start(plan_.strikes, plan_.load.over + plan_.load.over / 2);
    scheduler_.advance(plan_.load.over * 2);
    cluster_.heal();
    if (!settle()) return;
    LedgerRules rules;
    rules.groups_lost = cluster_.lost.size();
    rules.lost_to_poison = cluster_.lost_to_poison;
    rules.latest = kLongestFreeze;
    rules.max_model_len = plan_.load.max_model_len;
    add(check_answers(clients_, cluster_, rules, *shared_tokenizer()));
    if (plan_.harmless && !cluster_.lost.empty())
      fault("a group was lost and nothing had gone wrong: " + cluster_.lost.front());
    const auto most = static_cast<size_t>(plan_.load.poison) * kLossesOfPoison;
    if (cluster_.lost_to_poison > most)
      fault(fmt::format("{} groups were lost to {} requests that end their workers (R-8)",
                        cluster_.lost_to_poison, plan_.load.poison));
    end();
  }

  // Until every request has ended and the server is back, idle, and stays so for a second. Its
  // workers have answered since the last fault, a canary if nothing else: none hangs unnoticed.
  bool settle() {
    const TimePoint healed = scheduler_.clock().now();
    const Duration patience = plan_.load.poison > 0 ? kPoisonPatience : kPatience;
    while (scheduler_.clock().now() < healed + patience) {
      scheduler_.advance(kLookAround);
      if (!settled(healed)) continue;
      scheduler_.advance(std::chrono::seconds(1));
      if (settled(healed)) return true;
    }
    fault(fmt::format("not settled {} s after the last fault",
                      std::chrono::duration<double>(patience).count()));
    for (const auto& asked : clients_.asked())
      if (!asked->ended()) fault(fmt::format("request {}.{} waits (I1)", asked->life, asked->id));
    if (const Engine* engine = cluster_.engine()) add(check_idle_engine(engine->stats()));
    return false;
  }
  bool settled(TimePoint healed) {
    if (!clients_.done() || cluster_.engine() == nullptr) return false;
    const EngineStats stats = cluster_.engine()->stats();
    return check_idle_engine(stats).empty() &&
           std::ranges::all_of(stats.groups, [&](const GroupStats& group) {
             return group.seconds_since_last_answer <
                    seconds_between(healed, scheduler_.clock().now());
           });
  }

  void end() {
    bool drained = false;
    cluster_.engine()->drain([&] { drained = true; });
    scheduler_.run_until_idle();
    if (!drained) fault("the engine is idle and does not say that it is drained");
    cluster_.shut_down();
    scheduler_.advance(std::chrono::seconds(1));
    if (cluster_.workers_alive() > 0)
      fault(fmt::format("{} workers outlive the engine", cluster_.workers_alive()));
  }

  void count() {
    for (const auto& asked : clients_.asked()) {
      ++report_.requests;
      report_.tokens += asked->tokens.size();
      report_.poison += asked->poison;
      report_.isolated += asked->poison && asked->error &&
                          asked->error->message.find("it is not tried again") != std::string::npos;
      if (asked->finishes == 0) {
        ++report_.unanswered;
      } else if (asked->finish == FinishReason::kAbort) {
        ++report_.aborted;
      } else if (asked->finish == FinishReason::kError) {
        ++report_.errors;
      } else {
        ++report_.complete;
      }
    }
    report_.refused = static_cast<uint64_t>(clients_.refused());
    report_.groups_lost = cluster_.lost.size();
    for (const Succession& each : cluster_.successions())
      report_.adoptions += static_cast<uint64_t>(each.adoptions());
    report_.virtual_seconds =
        std::chrono::duration<double>(scheduler_.clock().now().time_since_epoch()).count();
  }

  void fault(const std::string& what) { report_.faults.push_back(what); }
  void add(const std::vector<std::string>& faults) {
    report_.faults.insert(report_.faults.end(), faults.begin(), faults.end());
  }

  ManualScheduler scheduler_;
  CapturedLog log_;
  Plan plan_;
  Cluster cluster_;
  Clients clients_;
  Chaos chaos_;
  SimReport report_;
};

}  // namespace

uint64_t digest_of(const std::vector<std::string>& log) {
  uint64_t digest = 1469598103934665603ULL;
  for (const std::string& line : log) {
    for (const char letter : line)
      digest = (digest ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    digest = (digest ^ 10u) * 1099511628211ULL;
  }
  return digest;
}

SimReport run_seed(uint64_t seed) { return Simulation(seed).run(); }

}  // namespace refrain::sim
