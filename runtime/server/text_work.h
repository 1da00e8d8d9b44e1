#pragma once
// Parsing, templates and tokenizing off the connections' threads: keys take turns there, and so do
// the requests of one key, of which no more wait than the engine would take. Any thread.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/actor/thread_pool.h"
#include "runtime/server/api_keys.h"
#include "runtime/server/replies.h"

namespace refrain {

class TextWork : public std::enable_shared_from_this<TextWork> {
 public:
  // `config` and `keys` are there until end().
  TextWork(const EngineConfig& config, const ApiKeys& keys, Replies replies, int threads);
  ~TextWork() { end(); }

  // `work` takes the request's body, and drops it as soon as it is parsed. Refused with an answer:
  // a key that has as many requests as it may, and more requests than may wait.
  using Work = std::function<void(HttpRequest, KeyLease, const Exchange&)>;
  void post(HttpRequest& request, const Exchange& exchange, Work work);
  // The same where the answer is what `work` makes of the request.
  void post_answer(HttpRequest& request, const Exchange& exchange,
                   std::function<Result<Json>(HttpRequest)> work);
  // One more turn for a request that is on its way. Answers with an error when the work throws; is
  // left out when the client has gone.
  void post_turn(const std::string& owner, const Exchange& exchange, std::function<void()> work);
  // The same on a thread of its own, where nobody waits for what takes long.
  void post_long_turn(const std::string& owner, const Exchange& exchange,
                      std::function<void()> work);

  // The turn that makes a request's answer, which stop() lets come.
  void post_last(const std::string& owner, const Exchange& exchange, std::function<void()> work);

  // Other work ends with errors from here on.
  void stop() { stopped_ = true; }
  const std::atomic<bool>& stopped() const { return stopped_; }
  // stop(), and none of it runs any more.
  void end();

 private:
  bool too_many() const;
  void put(std::optional<ThreadPool>& pool, const std::string& owner, const Exchange& exchange,
           std::function<void()> work);
  void run(const Exchange& exchange, const std::function<void()>& work);
  void run_last(const Exchange& exchange, const std::function<void()>& work);

  const EngineConfig& config_;
  const ApiKeys& keys_;
  const Replies replies_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> tasks_{0};  // that wait or run
  std::mutex posting_;         // nothing is posted to a pool that ends
  bool ended_ = false;
  std::optional<ThreadPool> long_pool_, pool_;
};

}  // namespace refrain
