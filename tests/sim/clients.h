#pragma once
// The clients of a simulation: random requests at random times, some of them cancelled, and what
// they got. Their executor is never stopped.

#include <memory>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"
#include "tests/sim/cluster.h"

namespace refrain::sim {

// One accepted request and its answer so far.
struct Asked {
  int life = 0;  // of the coordinator that accepted it
  RequestId id = 0;
  GenerateRequest request;
  bool poison = false;  // it ends its workers
  bool cancelled = false;
  bool coordinator_gone = false;  // it ended without an answer, as its connection did

  std::vector<TokenId> tokens;
  std::string text;
  int finishes = 0;
  FinishReason finish = FinishReason::kNone;
  std::string stop_reason;
  std::optional<Error> error;
  TimePoint asked_at, cancelled_at, ended_at;

  bool ended() const { return finishes > 0 || coordinator_gone; }
};

struct LoadOptions {
  int requests = 40;
  int poison = 0;                           // more, which end their workers
  Duration over = std::chrono::seconds(4);  // all arrive within
  uint32_t cancels = 100;                   // in a thousand
  bool plain = false;                       // greedy requests that end by their length
  int64_t max_model_len = 64;
  int32_t longest_prompt = 40;
};

class Clients {
 public:
  Clients(ManualScheduler& scheduler, Cluster& cluster, LoadOptions options,
          std::shared_ptr<const text::Tokenizer> tokenizer);

  void start();
  // All have been submitted and have ended.
  bool done() const;
  const std::vector<std::unique_ptr<Asked>>& asked() const { return asked_; }
  int refused() const { return refused_; }  // for overload, or as there is no coordinator

  std::vector<std::string> violations;

 private:
  void arrive();
  void arrive_poison();
  GenerateRequest random_request();
  void choose_sampling(GenerateRequest& request);
  void choose_stop_string(GenerateRequest& request);
  void submit(GenerateRequest request);
  void on_output(Asked& asked, RequestOutput output);
  const SimModel& model_now() const { return cluster_.model(cluster_.life()); }
  bool chance(uint32_t in_a_thousand) { return scheduler_.random(1000) < in_a_thousand; }
  void note(const std::string& line) { scheduler_.note("| " + line); }

  ManualScheduler& scheduler_;
  Cluster& cluster_;
  const LoadOptions options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::shared_ptr<Executor> executor_;
  std::vector<std::unique_ptr<Asked>> asked_;
  int to_come_ = 0;
  int refused_ = 0;
};

}  // namespace refrain::sim
