#pragma once
// A worker process without a model: speaks the protocol in real frames over an endpoint, runs steps
// on a MockDevice. Faults are staged through its public fields. Lives on one executor.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/transport/endpoint.h"
#include "tests/unit/sched/mock_device.h"

namespace refrain::testing {

struct MockRankOptions {
  int32_t rank = 0;
  int32_t tensor_parallel_size = 1;
  int64_t pid = 100;
  std::string build_id = "build";
  std::string model_digest = "digest";
  std::string realm = "here";
  uint64_t process_start = 7;
  int64_t num_kv_blocks = 64;
  int64_t blocks_lost_to_graphs = 0;  // Ready tells of fewer than InitCache
  std::string held_group;             // it offers to be adopted with this group's graphs
  Epoch last_epoch = 0;
  uint64_t vocab = 500;
  uint64_t eos_every = 0;
  bool logprobs = false;
  bool draws = false;  // tokens depend on the seed, but for greedy requests
  int32_t group = 0;
  bool steps_together = false;  // with the other groups
};

// Differs from token to token, so that one that goes with another token is seen.
inline float mock_logprob(TokenId token) { return -0.5f - 0.25f * static_cast<float>(token % 16); }

class MockRank {
 public:
  MockRank(std::unique_ptr<ipc::Endpoint> endpoint, MockRankOptions rank_options)
      : options(std::move(rank_options)), endpoint_(std::move(endpoint)), gate_(0) {
    ready.cudagraph_mode = "FULL";
    for (const int32_t size : {8, 4, 1}) {
      ipc::ManifestEntry entry;
      entry.mode = "FULL";
      entry.num_tokens = entry.num_reqs = size;
      ready.manifest.push_back(entry);
    }
    endpoint_->start([this](const ipc::PeerId&, std::span<const std::byte> frame) {
      if (!dead) on_frame(frame);
    });
  }

  void hello() {
    ipc::Hello hello;
    hello.build_id = options.build_id;
    hello.model_digest = options.model_digest;
    hello.group = options.group;
    hello.rank = options.rank;
    hello.tensor_parallel_size = options.tensor_parallel_size;
    hello.pid = options.pid;
    hello.host = "here";
    hello.realm = options.realm;
    hello.process_start = options.process_start;
    hello.held_group = options.held_group;
    hello.last_epoch = options.last_epoch;
    std::vector<std::byte> frame;
    ipc::encode_frame(hello, {0, 1}, frame);
    EXPECT_TRUE(endpoint_->send("", frame).has_value());
  }
  void say(const ipc::Message& message) {
    std::vector<std::byte> frame;
    ipc::encode_frame(message, {epoch, ++sent_}, frame);
    if (corrupt_next) frame.back() ^= std::byte{1};
    corrupt_next = false;
    EXPECT_TRUE(endpoint_->send("", frame).has_value());
  }
  void lose_a_frame() { ++sent_; }  // it is sent and never comes
  // Answers the oldest step that was held back.
  void answer() {
    ASSERT_FALSE(held.empty());
    const ipc::StepResult result = std::move(held.front());
    held.erase(held.begin());
    say(result);
  }

  // Does what an order says, as the ranks of its group are now.
  void pull(const ipc::PullBlocks& order) {
    const ipc::KvPeers& from = peers[order.group];
    if (pull_error.empty() && from.epoch == order.epoch && !from.ranks.empty()) {
      const size_t at = static_cast<size_t>(options.rank) % from.ranks.size();
      MockRank* other = find_rank(from.ranks[at].pid);
      if (other->last_run_ < order.step) {  // it writes them
        early_.push_back(order);
        other->watchers_.insert(this);
        return;
      }
      device_->pull(*other->device_, order.blocks);
      return say(ipc::Pulled{order.id, 1000, true, ""});
    }
    say(ipc::Pulled{order.id, 0, true, pull_error.empty() ? "the group is gone" : pull_error});
  }

  const ipc::WorkerConfig& config() const { return config_; }  // as it was welcomed

  MockRankOptions options;
  ipc::Ready ready;
  bool dead = false;           // hears and says nothing any more
  bool silent = false;         // hears all, says no heartbeats
  bool hold_answers = false;   // steps run, their answers stay in `held`
  bool compiles_late = false;  // a test says GrammarReady
  std::vector<RequestId> grammars;
  std::vector<AdapterId> adapters;  // that it was asked to load and not to drop
  bool loads_late = false;          // a test says AdapterLoaded
  std::string refuses_adapters;     // why
  bool hold_loaded = false, hold_ready = false;
  bool corrupt_next = false;
  int32_t key_skew = 0;                             // added to the key of its answers
  std::function<bool(const ipc::Step&)> ends_with;  // its process ends in such a step
  // The row of this step has no finite logit, where it samples, behind the drafts that were right.
  std::function<bool(const ipc::Step&, size_t row)> no_logit;
  // It did not follow the row's grammar in time.
  std::function<bool(const ipc::Step&, size_t row)> too_slow;
  // What its audit of a step finds, where the step asks for one.
  std::function<ipc::AuditResult(const ipc::Step&)> audits;
  bool checks_weights = false;  // as it was welcomed
  Epoch epoch = 0;
  std::vector<ipc::StepResult> held;
  // Blocks of other groups: who has the pid of an export, and orders as they came.
  std::function<MockRank*(int64_t pid)> find_rank;
  bool hold_pulls = false;                         // a test calls pull() or refuse()
  std::string pull_error;                          // every pull ends with it
  std::vector<ipc::PullBlocks> pulls, held_pulls;  // all; those that have not ended
  std::vector<TransferId> cancelled;
  std::map<int32_t, ipc::KvPeers> peers;
  std::vector<ipc::Step> steps;
  std::string refused, shut_down, group_token;
  int64_t num_blocks = 0;
  int welcomes = 0;
  std::vector<ipc::GroupRole> roles;  // that it was told to take
  bool ends_for_role = false;         // instead of taking it

 private:
  void on_frame(std::span<const std::byte> bytes) {
    auto frame = ipc::decode_frame(bytes);
    ASSERT_TRUE(frame.has_value());
    if (auto* refuse = std::get_if<ipc::Refuse>(&frame->message)) {
      EXPECT_EQ(frame->info.epoch, 0u);
      refused = refuse->reason;
      return;
    }
    if (auto* welcome = std::get_if<ipc::Welcome>(&frame->message)) {
      if (frame->info.epoch != epoch) {
        epoch = frame->info.epoch;
        gate_ = ipc::FrameGate(epoch);
        sent_ = 0;
        last_run_ = 0;
        early_.clear();
        ++welcomes;
        group_token = welcome->group_token;
        EXPECT_EQ(welcome->held_group, options.held_group);
        config_ = welcome->config;
        checks_weights = welcome->check_weights;
      }
      if (!gate_.accept(frame->info)) return;
      say(ipc::Progress{ipc::StartPhase::kLoadWeights, 1, 1, ""});
      ipc::Loaded loaded;
      loaded.groups = full_attention(options.num_kv_blocks);
      loaded.kept = !options.held_group.empty();
      loaded.steps_together = options.steps_together;
      if (!hold_loaded) say(loaded);
      return;
    }
    ASSERT_TRUE(gate_.accept(frame->info)) << "a frame out of order";
    std::visit([this](auto& message) { on(message); }, frame->message);
  }

  template <class T>
  void on(T&) {
    ADD_FAILURE() << "a worker does not expect this message";
  }
  void on(ipc::InitCache& init) {
    num_blocks = init.num_blocks.at(0);
    device_ = std::make_unique<MockDevice>(config_.block_size, full_attention(num_blocks),
                                           options.vocab, options.eos_every, options.draws);
    ready.num_blocks = {num_blocks - options.blocks_lost_to_graphs};
    if (!hold_ready) say(ready);
    if (!config_.kv_transfer || hold_ready) return;
    ipc::KvExport own;
    own.pid = options.pid;
    own.layer_flags = config_.publish_layers;
    say(own);
  }
  void on(ipc::KvPeers& told) {
    peers[told.group] = told;
    look();
  }
  void on(ipc::PullBlocks& order) {
    pulls.push_back(order);
    hold_pulls ? held_pulls.push_back(order) : pull(order);
  }
  void on(ipc::CancelPull& cancel) {
    cancelled.push_back(cancel.id);
    if (std::erase_if(early_, [&](const auto& order) { return order.id == cancel.id; }) > 0)
      say(ipc::Pulled{cancel.id, 0, true, "cancelled"});
  }
  // Whether what it waits for is written.
  void look() {
    for (const ipc::PullBlocks& order : std::exchange(early_, {})) pull(order);
  }
  void on(ipc::Step& step) {
    steps.push_back(step);
    if (ends_with && ends_with(step)) {
      dead = true;
      return;
    }
    ipc::StepResult result = device_->run(step);
    last_run_ = step.step;
    for (MockRank* watcher : watchers_)
      if (!watcher->dead) watcher->look();
    for (size_t row = 0; row + 1 < result.token_offsets.size(); ++row) {
      const auto end = static_cast<size_t>(result.token_offsets[row + 1]);
      if (result.token_offsets[row + 1] > result.token_offsets[row] && no_logit &&
          no_logit(step, row))
        result.tokens[end - 1] = ipc::kNoFiniteLogit;
      if (too_slow && too_slow(step, row)) result.too_slow.push_back(static_cast<int32_t>(row));
    }
    result.rank = options.rank;
    if (step.audit && audits) result.audit = audits(step);
    result.mode = ipc::RuntimeMode::kFull;
    result.key_tokens = result.num_tokens + key_skew;
    if (options.rank > 0) {
      result.token_offsets.clear();
      result.drafted.clear();
      result.tokens.clear();
    } else if (options.logprobs) {
      result.top_offsets.push_back(0);
      for (const TokenId token : result.tokens) {
        result.logprobs.push_back(mock_logprob(token));
        result.top_tokens.insert(result.top_tokens.end(), {token, 1});
        result.top_logprobs.insert(result.top_logprobs.end(), {mock_logprob(token), -9.0f});
        result.top_offsets.push_back(static_cast<int32_t>(result.top_tokens.size()));
      }
    }
    if (hold_answers) {
      held.push_back(std::move(result));
    } else {
      say(result);
    }
  }
  void on(ipc::Grammar& grammar) {
    grammars.push_back(grammar.request);
    if (!compiles_late) say(ipc::GrammarReady{grammar.request});
  }
  void on(ipc::LoadAdapter& load) {
    adapters.push_back(load.id);
    if (!loads_late) say(ipc::AdapterLoaded{load.id, refuses_adapters});
  }
  void on(ipc::UnloadAdapter& unload) { std::erase(adapters, unload.id); }
  void on(ipc::Heartbeat& heartbeat) {
    if (!silent) say(heartbeat);
  }
  void on(ipc::TakeRole& told) {
    roles.push_back(told.role);
    options.held_group = held_token_.empty() ? group_token : held_token_;
    held_token_ = options.held_group;
    options.last_epoch = epoch;
    if (ends_for_role) {
      dead = true;
    } else {
      hello();
    }
  }
  void on(ipc::Shutdown& shutdown) {
    shut_down = shutdown.reason;
    dead = true;
  }

  std::unique_ptr<ipc::Endpoint> endpoint_;
  ipc::FrameGate gate_;
  uint64_t sent_ = 0;
  std::string held_token_;  // of the group whose weights it has
  ipc::WorkerConfig config_;
  std::unique_ptr<MockDevice> device_;
  StepId last_run_ = 0;
  std::vector<ipc::PullBlocks> early_;  // of steps that have not run
  std::set<MockRank*> watchers_;        // ranks that have such ones of this one's
};

}  // namespace refrain::testing
