#pragma once
// Who may join the queue. Predicts how long a new request would wait for its first token,
// from the work that waits and the throughput measured while requests waited, and refuses what
// would wait too long. Thread-safe; the engine reports progress from its executor.

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace refrain {

struct AdmissionOptions {
  int64_t max_running = 1;    // requests that the scheduler can run at once
  int64_t max_queue = 0;      // requests that may wait besides; 0: no limit
  Duration max_queue_wait{};  // longest wait for a first token; 0: no limit
};

struct AdmissionStats {
  double predicted_wait_seconds = 0;  // of a request that came now
  uint64_t refused_queue = 0;         // by --max-queue
  uint64_t refused_wait = 0;          // by the prediction
  uint64_t late = 0;                  // accepted, and ended because their wait grew too long
};

class Admission {
 public:
  explicit Admission(AdmissionOptions options);

  // Accepts and numbers a request, from 1 on, or refuses it with kOverloaded. `own_wait`: the
  // request's own limit; the lower one counts. Time out of service counts against it alone.
  Result<RequestId> admit(int64_t prompt_tokens, int64_t max_tokens,
                          std::optional<Duration> own_wait, TimePoint now);
  // The same without a look at the queue, which somebody else had.
  RequestId enter(int64_t prompt_tokens, int64_t max_tokens, std::optional<Duration> own_wait,
                  TimePoint now);
  // Refuses, and counts it, when admit() would refuse a request that sets no limit of its own.
  Status check();

  void token(RequestId id);    // the request got a token; its first one ends its wait
  void started(RequestId id);  // it runs, though it has no token yet
  void gone(RequestId id);     // it has ended, whichever way
  void late();                 // one of take_overdue() had to be ended
  // A step is done; `waiting`: requests in the scheduler's queue.
  void step(TimePoint now, uint64_t waiting);
  // Without workers, as it begins, no step comes: that time is neither measured nor counted
  // against the server's limit.
  void out_of_service(TimePoint now);
  void in_service(TimePoint now);

  std::optional<TimePoint> next_deadline() const;  // the earliest of those that wait
  // Requests that still wait past their limit; each is told once.
  std::vector<RequestId> take_overdue(TimePoint now);
  AdmissionStats stats() const;

 private:
  struct Request {
    int64_t prompt_tokens = 0;
    int64_t work = 0;  // tokens that it is expected to cost
    int64_t output_tokens = 0;
    bool waits = true;
    std::optional<TimePoint> own_start_by;
    std::optional<Duration> server_start_by;  // by the clock of the time in service
    std::optional<TimePoint> start_by;        // the earlier one of those that count now
  };

  RequestId add(int64_t prompt_tokens, int64_t max_tokens, std::optional<Duration> own_wait,
                TimePoint now);
  double predicted_wait() const;  // seconds; 0 when unknown
  Status check_queue();
  Status check_wait(Duration limit);
  void end_wait(RequestId id, Request& request);
  Duration time_in_service(TimePoint now) const;
  void set_deadline(RequestId id, Request& request, TimePoint now);
  void set_deadlines(TimePoint now);

  const AdmissionOptions options_;
  mutable std::mutex mutex_;
  RequestId next_id_ = 1;
  std::unordered_map<RequestId, Request> requests_;
  std::set<std::pair<TimePoint, RequestId>> deadlines_;
  int64_t waiting_work_ = 0;      // tokens, of requests that wait
  uint64_t scheduler_waits_ = 0;  // at the last step
  Duration served_{};             // before service began the last time
  std::optional<TimePoint> serves_since_;

  // Throughput while requests wait: tokens and seconds, both fading.
  std::optional<TimePoint> last_step_;
  int64_t tokens_since_ = 0;
  double tokens_ = 0, seconds_ = 0;
  // By which requests that ended were less or more than expected, fading too. A step takes as much
  // of it as leaves its tokens between half and twice what they are: one long answer, whose
  // correction is that of many steps, says little about the rate.
  double correction_ = 0;
  double mean_output_;
  uint64_t outputs_ = 0;
  AdmissionStats counts_;
};

}  // namespace refrain
