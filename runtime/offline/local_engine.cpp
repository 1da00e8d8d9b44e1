#include "runtime/offline/local_engine.h"

#include <signal.h>

#include <random>

#include "runtime/base/log.h"
#include "runtime/base/process_limits.h"
#include "runtime/server/prompt_logprobs.h"
#include "runtime/supervise/worker_commands.h"

namespace refrain {

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(EngineConfig config, Signals signals) {
  survive_file_size_limit();
  REFRAIN_RETURN_IF_ERROR(raise_descriptor_limit(kLeastDescriptors));
  auto local = std::unique_ptr<LocalEngine>(new LocalEngine());
  local->watches_signals_ = signals == Signals::kInterrupt;
  if (local->watches_signals_) local->signals_.emplace();
  REFRAIN_ASSIGN_OR_RETURN(local->host_, EngineHost::create(std::move(config)));
  local->strand_ = local->host_->io().make_strand();
  return local;
}

void LocalEngine::watch() {
  engine().on_progress([this](const StartProgress& progress) { display_.show(progress); });
  engine().on_state([this](GroupState state, const std::string& detail) {
    display_.finish();
    log::debug("workers {}: {}", to_string(state), detail);
    const std::lock_guard lock(mutex_);
    if (state == GroupState::kFailed) failed_ = detail;
    changed_.notify_all();
  });
  engine().on_group_state([this](int32_t group, GroupState state, const std::string&) {
    const std::lock_guard lock(mutex_);
    const bool serves = state == GroupState::kReady;
    if (serves) {
      GroupReport report;
      report.ready = true;
      report.group = group;
      strand_->post([this, report] { supervisor_->on_report(report); });
    }
    if (serves || state == GroupState::kFailed) {
      starting_.erase(group);
    } else {
      starting_.insert(group);
    }
    some_serve_ = some_serve_ || serves;
    ready_ = some_serve_ && starting_.empty();
    changed_.notify_all();
  });
  engine().on_loss([this](const GroupLoss& loss) {
    strand_->post([this, loss] { supervisor_->on_report({false, loss}); });
  });
  engine().on_isolation([this](Isolation isolation) {
    strand_->post([this, isolation] { supervisor_->on_report({false, {}, isolation}); });
  });
  engine().on_audit([this](const AuditFinding& finding) {
    strand_->post([this, finding] { supervisor_->on_report({false, {}, {}, finding}); });
  });
  if (!watches_signals_) return;
  host_->io().on_signals({SIGINT, SIGTERM}, strand_, [this](int) { interrupt(); });
  signals_->release();
}

void LocalEngine::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

std::optional<Error> LocalEngine::ended() {
  const std::lock_guard lock(mutex_);
  if (broken_) return Error{ErrorCode::kInternal, "the engine failed: " + *broken_, {}};
  if (!ended_) return std::nullopt;
  return Error{
      ErrorCode::kUnavailable, fmt::format("the workers ended (exit status {})", *ended_), {}};
}

Status LocalEngine::start() {
  SupervisorOptions options;
  options.workers = worker_commands(config(), config().ipc_address);
  options.max_restarts = config().max_restarts;
  options.incident_dir = config().incident_dir;
  options.seed = std::random_device{}();
  options.on_given_up = [this](int group) { engine().give_up_group(group); };
  supervisor_ = std::make_unique<Supervisor>(host_->io(), strand_, options,
                                             [this](int code) { on_end(code); });
  for (int32_t group = 0; group < config().num_groups(); ++group) starting_.insert(group);
  watch();
  // Workers die with the thread that spawned them, so that thread is the one that lives longest.
  supervisor_->start();
  io_thread_ = std::thread([this] {
    try {
      host_->run();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      broken_ = error.what();
      changed_.notify_all();
    }
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready_ || ended_ || broken_ || failed_ || interrupted_; });
  if (ready_) return {};
  if (interrupted_) return fail(ErrorCode::kCancelled, "interrupted while starting");
  if (broken_) return fail(ErrorCode::kInternal, "the engine failed: {}", *broken_);
  if (failed_) return fail(ErrorCode::kInvalidArgument, "{}", *failed_);
  const ErrorCode code =
      *ended_ == kExitConfig ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable;
  return fail(code, "the workers did not start (exit status {}); their reason is above", *ended_);
}

LocalEngine::~LocalEngine() { stop(); }

void LocalEngine::on_end(int code) {
  const std::lock_guard lock(mutex_);
  ended_ = code;
  changed_.notify_all();
}

void LocalEngine::stop() {
  if (!io_thread_.joinable()) return;
  strand_->post([this] {
    host_->engine().stop();
    supervisor_->stop();
  });
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ || broken_; });
  }
  host_->io().stop();
  io_thread_.join();
}

Result<std::vector<RequestOutput>> LocalEngine::run(std::vector<GenerateRequest> requests,
                                                    const OutputHandler& on_output) {
  // Sinks outlive this call only until the engine stops; they share this state.
  struct Progress {
    std::vector<RequestOutput> outputs;
    size_t unfinished = 0;
    std::optional<Error> error;
  };
  auto progress = std::make_shared<Progress>();
  progress->outputs.resize(requests.size());
  progress->unfinished = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    auto id = engine().submit(
        std::move(requests[i]), [this, progress, i, on_output](RequestOutput output) {
          if (on_output) on_output(i, output);
          const std::lock_guard lock(mutex_);
          RequestOutput& whole = progress->outputs[i];
          whole.tokens.insert(whole.tokens.end(), output.tokens.begin(), output.tokens.end());
          whole.text += output.text;
          if (output.prompt && !are_numbers(*output.prompt)) output.error = no_finite_logits();
          if (output.prompt) whole.prompt = std::move(output.prompt);
          whole.finish = output.finish;
          whole.stop_reason = output.stop_reason;
          whole.prompt_tokens = output.prompt_tokens;
          whole.cached_tokens = output.cached_tokens;
          whole.output_tokens = output.output_tokens;
          if (output.error && !progress->error) progress->error = output.error;
          if (output.finish != FinishReason::kNone && --progress->unfinished == 0) {
            changed_.notify_all();
          }
          if (output.error) changed_.notify_all();
        });
    if (!id) {
      Error error = id.error();
      error.message = fmt::format("request {}: {}", i + 1, error.message);
      return forward_error(std::move(error));
    }
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return progress->unfinished == 0 || progress->error || ended_ || broken_ || interrupted_;
  });
  if (progress->error) return forward_error(*progress->error);
  if (interrupted_) return fail(ErrorCode::kCancelled, "interrupted");
  if (progress->unfinished == 0 && !broken_) return std::move(progress->outputs);
  lock.unlock();
  return forward_error(*ended());
}

}  // namespace refrain
