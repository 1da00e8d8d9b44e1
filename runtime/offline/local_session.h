#pragma once
// A local engine as the library offers it: requests in as JSON, outputs polled, its life on a
// thread of its own, from which the workers are spawned and which outlives them. Every function may
// be called from any thread; signals are left alone.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/request.h"

namespace refrain {

class LocalAdapters;
class LocalEngine;

// A token of a prompt, of which prompt_logprobs tells.
struct PromptToken {
  TokenId token = 0;
  float logprob = 0;
  int32_t rank = 0;               // 1: the most likely
  std::vector<TokenLogprob> top;  // most likely first
};
struct SessionOutput {
  RequestOutput output;
  std::vector<PromptToken> prompt;  // from the prompt's second token on, when asked for; once
};

class LocalSession {
 public:
  // Options are the words of a command line, as `refrain generate` takes them. The workers start;
  // wait_ready says when they are ready.
  static Result<std::unique_ptr<LocalSession>> create(const std::vector<std::string>& options);
  ~LocalSession();  // stops

  // False: not ready within the timeout. An error is final.
  Result<bool> wait_ready(Duration timeout);
  struct Added {
    RequestId id = 0;
    std::vector<TokenId> prompt;
  };
  // A request as read_request_line reads it; `model` may name an adapter. Once ready.
  Result<Added> add(const std::string& request);
  // What has arrived since the last call; waits for the first output up to the timeout. An error
  // says that no more will come.
  Result<std::vector<SessionOutput>> poll(Duration timeout);
  // Makes the adapter of a directory one that requests may name. False: not within the timeout;
  // call it again to wait on.
  Result<bool> load_adapter(const std::string& name, const std::string& path, Duration timeout);
  Result<bool> unload_adapter(const std::string& name, Duration timeout);
  void cancel(RequestId id);  // its last output says abort
  // Ends the workers and waits for them. What was not finished stays so. A start is interrupted.
  void stop();
  std::string token_text(TokenId id);

 private:
  struct Outbox;
  LocalSession();
  void live();
  Result<bool> ask_adapters(Duration timeout, const std::function<Result<bool>(Duration)>& ask);
  Status choose_adapter(const std::string& model, GenerateRequest& request) const;
  OutputSink sink_of(const GenerateRequest& request);

  std::unique_ptr<LocalAdapters> adapters_;
  std::unique_ptr<LocalEngine> local_;
  std::shared_ptr<Outbox> outbox_;  // shared with the engine's sinks
  std::shared_mutex life_;          // held while local_ is used; alone: while it goes
  std::mutex ending_;               // one thread at a time stops
  std::thread thread_;
};

}  // namespace refrain
