#pragma once
// One request to a model that pools: its prompts submitted to the engine, their vectors collected,
// one answer. Kept alive by the sinks it gives the engine.

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/server/api_keys.h"
#include "runtime/server/http_server.h"
#include "runtime/server/metrics.h"
#include "runtime/server/pooling_answer.h"
#include "runtime/server/text_work.h"

namespace refrain {

class PoolingSession : public std::enable_shared_from_this<PoolingSession> {
 public:
  PoolingSession(ApiRequest request, AnswerHead head, Engine& engine,
                 std::shared_ptr<Metrics> metrics, std::shared_ptr<HttpExchange> exchange,
                 KeyLease lease, std::weak_ptr<TextWork> work);

  // A refusal cancels what was submitted and answers with the error.
  void start(std::vector<std::vector<TokenId>> prompts);

 private:
  Result<RequestId> submit(size_t index, std::vector<TokenId> prompt);
  void on_output(size_t index, RequestOutput output);
  void finish();
  void answer();
  void fail_all(Error error);
  void cancel_rest();

  const ApiRequest request_;
  const AnswerHead head_;
  Engine& engine_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<HttpExchange> exchange_;
  KeyLease lease_;  // one of the key's requests for each prompt, until the answer
  const std::weak_ptr<TextWork> work_;  // which makes the answer, off the connection's thread
  const TimePoint begun_;
  std::mutex mutex_;                   // sinks, submission and disconnect meet here
  std::vector<RequestId> ids_;         // by prompt; 0: not submitted
  std::vector<PooledVector> vectors_;  // by prompt; null: not yet there
  Usage usage_;
  size_t unfinished_ = 0;
  bool ended_ = false;
};

}  // namespace refrain
