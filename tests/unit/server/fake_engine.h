#pragma once
// An engine that runs nothing: what the server asks of it is what a test has put here. And an
// exchange that keeps its answer.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/server/http_server.h"
#include "runtime/server/text_work.h"

namespace refrain::test {

struct FakeEngine final : Engine {
  EngineConfig options;
  ModelConfig read;
  Status accepts;
  EngineHealth is;
  std::vector<GroupOrder> orders;
  std::vector<AdapterSource> known;
  AdapterId any_id{};

  void start() override {}
  std::function<RequestId(OutputSink)> takes;
  std::vector<RequestId> cancelled;
  Result<RequestId> submit(GenerateRequest, OutputSink sink) override {
    if (takes) return takes(std::move(sink));
    return fail(ErrorCode::kUnavailable, "this engine runs nothing");
  }
  Status check(const GenerateRequest&) const override { return {}; }
  Status accepting() override { return accepts; }
  AdmissionStats admission() const override { return {}; }
  std::optional<AdapterId> find_adapter(const std::string& name) const override {
    for (const AdapterSource& adapter : known)
      if (adapter.name == name) return any_id;
    return std::nullopt;
  }
  std::vector<AdapterSource> adapters() const override { return known; }
  void load_adapter(AdapterSource, AdapterDone done) override { done({}); }
  void unload_adapter(const std::string&, AdapterDone done) override { done({}); }
  void cancel(RequestId id) override { cancelled.push_back(id); }
  EngineStats stats() const override { return {}; }
  EngineHealth health() const override { return is; }
  void on_state(std::function<void(GroupState, const std::string&)>) override {}
  void on_group_state(std::function<void(int32_t, GroupState, const std::string&)>) override {}
  void on_progress(std::function<void(const StartProgress&)>) override {}
  void on_loss(std::function<void(const GroupLoss&)>) override {}
  void on_isolation(std::function<void(Isolation)>) override {}
  void on_audit(std::function<void(const AuditFinding&)>) override {}
  void give_up_group(int32_t) override {}
  void control_group(const GroupOrder& order, GroupOrderDone done) override {
    orders.push_back(order);
    done({});
  }
  void drain(std::function<void()> drained) override { drained(); }
  void stop() override {}
  const ModelConfig& model() const override { return read; }
  const EngineConfig& config() const override { return options; }
};

class FakeExchange final : public HttpExchange {
 public:
  using HttpExchange::reply;
  void reply(HttpReply reply) override {
    const auto forgotten = handler();  // it holds its session, which holds this
    const std::lock_guard lock(mutex_);
    if (!reply_) reply_ = std::move(reply);
    replied_.notify_all();
  }
  void begin_stream(int, std::string, HttpHeaders) override {}
  void write(std::string chunk) override {
    const std::lock_guard lock(mutex_);
    written_ += chunk;
  }
  void end_stream() override { handler(); }
  void on_disconnect(std::function<void()> handler) override {
    const std::lock_guard lock(mutex_);
    on_disconnect_ = std::move(handler);
  }
  void on_idle(Duration, std::function<void()>) override {}
  size_t io_thread() const override { return 0; }

  void leave() { handler()(); }
  std::string written() {  // of a stream
    const std::lock_guard lock(mutex_);
    return written_;
  }
  bool answered() {
    const std::lock_guard lock(mutex_);
    return reply_.has_value();
  }
  // Status 0: none came.
  HttpReply wait() {
    std::unique_lock lock(mutex_);
    replied_.wait_for(lock, std::chrono::seconds(30), [this] { return reply_.has_value(); });
    return reply_.value_or(HttpReply{0, "", "", {}});
  }

 private:
  std::function<void()> handler() {
    const std::lock_guard lock(mutex_);
    return std::exchange(on_disconnect_, nullptr);
  }

  std::mutex mutex_;
  std::condition_variable replied_;
  std::optional<HttpReply> reply_;
  std::string written_;
  std::function<void()> on_disconnect_;
};

// The only thread of a TextWork, busy until go().
class HeldTextThread {
 public:
  explicit HeldTextThread(TextWork& work) {
    work.post_turn("", std::make_shared<FakeExchange>(), [this] {
      begun_.set_value();
      go_.get_future().wait();
    });
    begun_.get_future().wait();
  }
  void go() { go_.set_value(); }

 private:
  std::promise<void> begun_, go_;
};

}  // namespace refrain::test
