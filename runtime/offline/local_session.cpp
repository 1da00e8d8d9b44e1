#include "runtime/offline/local_session.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>

#include "ipc/protocol/messages.h"
#include "runtime/base/log.h"
#include "runtime/config/options.h"
#include "runtime/offline/local_adapters.h"
#include "runtime/offline/local_engine.h"
#include "runtime/offline/request_line.h"
#include "runtime/server/prompt_logprobs.h"
#include "runtime/text/tokenizer.h"

namespace refrain {

struct LocalSession::Outbox {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::vector<SessionOutput> outputs;
  std::optional<Status> started;
  bool stopping = false;
};

namespace {

// How long one look at an adapter may keep stop() waiting.
constexpr Duration kLook = std::chrono::milliseconds(100);

std::vector<PromptToken> prompt_tokens(const std::vector<TokenId>& prompt,
                                       const ipc::PromptScores& scores) {
  std::vector<PromptToken> tokens;
  for (size_t at = 0; at < scores.logprobs.size(); ++at) {
    tokens.push_back({prompt[at + 1], scores.logprobs[at], scores.ranks[at], {}});
    for (auto i = static_cast<size_t>(scores.top_offsets[at]);
         i < static_cast<size_t>(scores.top_offsets[at + 1]); ++i)
      tokens.back().top.push_back({scores.top_tokens[i], scores.top_logprobs[i]});
  }
  return tokens;
}

}  // namespace

LocalSession::LocalSession() : outbox_(std::make_shared<Outbox>()) {}

LocalSession::~LocalSession() { stop(); }

Result<std::unique_ptr<LocalSession>> LocalSession::create(
    const std::vector<std::string>& options) {
  EngineConfig config;
  config.log_level = "warning";
  CLI::App app("", "refrain");
  add_engine_options(app, config, {.server = false, .positional_model = false});
  REFRAIN_ASSIGN_OR_RETURN(const ParseOutcome parsed, parse_command_line(app, options));
  if (parsed.exit_now) {
    return fail(ErrorCode::kInvalidArgument, "an engine has no --help; ask `refrain generate`");
  }
  init_logging("refrain", config.log_level);
  auto session = std::unique_ptr<LocalSession>(new LocalSession());
  REFRAIN_ASSIGN_OR_RETURN(session->adapters_, LocalAdapters::create(config));
  REFRAIN_ASSIGN_OR_RETURN(session->local_,
                           LocalEngine::create(std::move(config), Signals::kLeave));
  session->thread_ = std::thread([raw = session.get()] { raw->live(); });
  return session;
}

void LocalSession::live() {
  Status status;
  try {
    status = local_->start();
  } catch (const std::exception& error) {
    status = fail(ErrorCode::kInternal, "{}", error.what());
  }
  {
    std::unique_lock lock(outbox_->mutex);
    outbox_->started = status;
    outbox_->changed.notify_all();
    outbox_->changed.wait(lock, [this] { return outbox_->stopping; });
  }
  const std::unique_lock alone(life_);
  local_.reset();
  adapters_.reset();
}

Result<bool> LocalSession::wait_ready(Duration timeout) {
  std::unique_lock lock(outbox_->mutex);
  outbox_->changed.wait_for(lock, timeout,
                            [this] { return outbox_->started || outbox_->stopping; });
  if (outbox_->stopping) return fail(ErrorCode::kCancelled, "the engine was stopped");
  if (!outbox_->started) return false;
  if (!*outbox_->started) return forward_error(outbox_->started->error());
  return true;
}

Result<LocalSession::Added> LocalSession::add(const std::string& request) {
  REFRAIN_ASSIGN_OR_RETURN(const bool ready, wait_ready({}));
  if (!ready) return fail(ErrorCode::kUnavailable, "the engine is not ready yet");
  const std::shared_lock used(life_);
  if (!local_) return fail(ErrorCode::kCancelled, "the engine was stopped");
  REFRAIN_ASSIGN_OR_RETURN(const OrderedJson line, parse_ordered_json(request));
  if (!line.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "a request must be a JSON object");
  }
  REFRAIN_ASSIGN_OR_RETURN(
      GenerateRequest read,
      read_request_line(line, local_->text(), local_->config().generation_defaults, {}));
  REFRAIN_RETURN_IF_ERROR(choose_adapter(text_of(Json(line), "model"), read));
  Added added{0, read.prompt};
  OutputSink sink = sink_of(read);
  REFRAIN_ASSIGN_OR_RETURN(added.id, local_->engine().submit(std::move(read), std::move(sink)));
  return added;
}

Status LocalSession::choose_adapter(const std::string& model, GenerateRequest& request) const {
  const auto& names = local_->config().served_model_names;
  if (model.empty() || std::ranges::count(names, model) > 0) return {};
  const auto adapter = local_->engine().find_adapter(model);
  if (!adapter)
    return fail(ErrorCode::kNotFound, "the model '{}' does not exist; there is '{}'", model,
                names.front());
  request.adapter = *adapter;
  return {};
}

// What arrives goes into the outbox; nothing after a finish.
OutputSink LocalSession::sink_of(const GenerateRequest& request) {
  auto prompt = request.sampling.prompt_logprobs >= 0 ? request.prompt : std::vector<TokenId>();
  return [outbox = outbox_, engine = &local_->engine(), prompt = std::move(prompt),
          ended = false](RequestOutput output) mutable {
    if (std::exchange(ended, ended || output.finish != FinishReason::kNone)) return;
    SessionOutput piece;
    if (output.prompt && !are_numbers(*output.prompt)) {
      engine->cancel(output.id);
      ended = true;
      output.finish = FinishReason::kError;
      output.error = no_finite_logits();
    } else if (output.prompt) {
      piece.prompt = prompt_tokens(prompt, *output.prompt);
    }
    piece.output = std::move(output);
    const std::lock_guard lock(outbox->mutex);
    outbox->outputs.push_back(std::move(piece));
    outbox->changed.notify_all();
  };
}

Result<bool> LocalSession::load_adapter(const std::string& name, const std::string& path,
                                        Duration timeout) {
  return ask_adapters(
      timeout, [&](Duration look) { return adapters_->load(local_->engine(), name, path, look); });
}

Result<bool> LocalSession::unload_adapter(const std::string& name, Duration timeout) {
  return ask_adapters(
      timeout, [&](Duration look) { return adapters_->unload(local_->engine(), name, look); });
}

// Look by look, while the engine lives.
Result<bool> LocalSession::ask_adapters(Duration timeout,
                                        const std::function<Result<bool>(Duration)>& ask) {
  const TimePoint until = steady_clock().now() + timeout;
  for (;;) {
    REFRAIN_ASSIGN_OR_RETURN(const bool ready, wait_ready({}));
    if (!ready) return fail(ErrorCode::kUnavailable, "the engine is not ready yet");
    const std::shared_lock used(life_);
    if (!local_) return fail(ErrorCode::kCancelled, "the engine was stopped");
    if (auto error = local_->ended()) return forward_error(std::move(*error));
    const Duration left = until - steady_clock().now();
    REFRAIN_ASSIGN_OR_RETURN(const bool done, ask(std::clamp(left, Duration::zero(), kLook)));
    if (done || left <= Duration::zero()) return done;
  }
}

Result<std::vector<SessionOutput>> LocalSession::poll(Duration timeout) {
  {
    std::unique_lock lock(outbox_->mutex);
    outbox_->changed.wait_for(lock, timeout,
                              [this] { return !outbox_->outputs.empty() || outbox_->stopping; });
    if (!outbox_->outputs.empty()) return std::exchange(outbox_->outputs, {});
    if (outbox_->stopping) return fail(ErrorCode::kCancelled, "the engine was stopped");
  }
  const std::shared_lock used(life_);
  if (!local_) return fail(ErrorCode::kCancelled, "the engine was stopped");
  if (auto error = local_->ended()) return forward_error(std::move(*error));
  return std::vector<SessionOutput>{};
}

void LocalSession::cancel(RequestId id) {
  const std::shared_lock used(life_);
  if (local_) local_->engine().cancel(id);
}

void LocalSession::stop() {
  {
    const std::lock_guard lock(outbox_->mutex);
    outbox_->stopping = true;
    outbox_->changed.notify_all();
  }
  {
    const std::shared_lock used(life_);
    if (local_) local_->interrupt();
  }
  const std::lock_guard one(ending_);
  if (thread_.joinable()) thread_.join();
}

std::string LocalSession::token_text(TokenId id) {
  const std::shared_lock used(life_);
  return local_ ? local_->text().tokenizer->token_to_string(id) : std::string();
}

}  // namespace refrain
