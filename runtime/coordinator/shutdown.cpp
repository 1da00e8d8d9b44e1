#include "runtime/coordinator/shutdown.h"

#include <signal.h>
#include <unistd.h>

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"
#include "runtime/base/process_limits.h"
#include "runtime/base/report.h"
#include "runtime/supervise/run_directory.h"

namespace refrain {
namespace {

constexpr auto kLastAnswers = std::chrono::seconds(1);  // for answers that end with the engine
constexpr auto kLook = std::chrono::milliseconds(5);

// What the supervisor would clear away, when it is gone.
void clear_after(int64_t parent) {
  if (parent <= 0 || ::getppid() == parent) return;
  remove_segments_of(::getpid());
  remove_run_of(static_cast<pid_t>(parent));
}

}  // namespace

Shutdown::Shutdown(Engine& engine, IoContext& io, HttpSide* http, EndingWatch& watch,
                   std::shared_ptr<Executor> strand)
    : engine_(engine), io_(io), http_(http), watch_(watch), strand_(std::move(strand)) {}

void Shutdown::take_signals(int64_t parent) {
  io_.on_signals_for_good({SIGINT, SIGTERM}, strand_, [this](int number) { on_signal(number); });
  if (http_ == nullptr) return;
  http_->drain_by(parent,
                  [this, strand = strand_] { strand->post([this] { on_signal(SIGTERM); }); });
}

void Shutdown::on_signal(int number) {
  if (++signals_ > 1) return end();
  if (ended_) return;
  const double timeout = engine_.config().drain_timeout;
  log::info("{}: finishing running requests (at most {} s; once more ends at once)",
            number == SIGINT ? "SIGINT" : "SIGTERM", timeout);
  if (http_ != nullptr) http_->api().set_draining();
  engine_.drain([this] { strand_->post([this] { end(); }); });
  const auto limit = to_duration(timeout);
  strand_->post_after(limit, [this] { end(); });
  watch_.end_within(limit + kLastThreads);
}

void Shutdown::end() {
  if (ended_) return;
  ended_ = true;
  watch_.end_within(kLastThreads);
  if (http_ != nullptr) http_->api().stop_text();
  if (before_end_) before_end_();
  if (http_ != nullptr) http_->server().stop_accepting();
  engine_.stop();
  wait_for_answers(strand_->clock().now() + kLastAnswers);
}

// Answers that end now still have to reach their clients before the sockets close.
void Shutdown::wait_for_answers(TimePoint limit) {
  strand_->post_after(kLook, [this, limit] {
    const bool answers = http_ != nullptr && http_->server().answering() > 0;
    if (answers && strand_->clock().now() < limit) return wait_for_answers(limit);
    io_.stop();
  });
}

void end_with_parent(int64_t parent, IoContext& io, const std::shared_ptr<Executor>& strand,
                     Shutdown& shutdown) {
  if (parent <= 0) return;
  const auto alone = [&shutdown] {
    log::error("the supervisor is gone: ending");
    shutdown.end();
  };
  if (!io.on_process_exit(parent, strand, alone)) strand->post(alone);
}

int run_program(int64_t parent, const std::function<int(SignalHold&, EndingWatch&)>& serve) {
  survive_file_size_limit();
  if (const Status raised = raise_descriptor_limit(kLeastDescriptors); !raised) {
    return report(raised.error());
  }
  int code = kExitOk;
  {
    SignalHold signals;
    ::signal(SIGPIPE, SIG_IGN);  // a supervisor or a log that is gone is an error of write()
    EndingWatch watch(static_cast<pid_t>(parent), kLastThreads, [parent] {
      log::critical("a thread did not end in time: the process ends without it");
      clear_after(parent);
      ::_exit(kExitInternal);
    });
    code = serve(signals, watch);
  }
  clear_after(parent);
  return code;
}

}  // namespace refrain
