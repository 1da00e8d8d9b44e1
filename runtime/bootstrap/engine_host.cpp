#include "runtime/bootstrap/engine_host.h"

#include <algorithm>

#include "ipc/protocol/limits.h"
#include "ipc/transport/endpoint.h"
#include "runtime/bootstrap/text_files.h"

namespace refrain {
namespace {

constexpr int kLastWordsMs = 200;  // a refusal or Shutdown sent just before the end still goes out

// The longest frame that a worker sends: Ready, or the result of a step in which every row asks for
// all log-probabilities.
int64_t largest_answer(const ipc::WorkerConfig& worker) {
  constexpr int64_t kRowBytes = 4 + 4 + 4 + 8 * kMaxLogprobs;
  constexpr int64_t kFixedBytes = 256;
  const size_t ready = ipc::kMaxPayloadBytes[ipc::Message(ipc::Ready{}).index()];
  const int64_t rows = kFixedBytes + worker.max_num_seqs * kRowBytes;
  return static_cast<int64_t>(ipc::kHeaderBytes) + std::max(static_cast<int64_t>(ready), rows);
}

}  // namespace

// In a run directory of its own where no address is given.
Result<std::unique_ptr<ipc::Endpoint>> EngineHost::bind(EngineConfig& config) {
  if (config.ipc_address.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(RunDirectory directory, RunDirectory::create());
    config.ipc_address = directory_.emplace(std::move(directory)).address();
  }
  ipc::EndpointOptions options;
  options.address = config.ipc_address;
  options.linger_ms = kLastWordsMs;
  options.max_receive_bytes = largest_answer(config.worker);
  options.curve = {config.curve_key, config.curve_allow, config.insecure_tcp};
  return ipc::make_zmq_server(io_, options);
}

Result<std::unique_ptr<EngineHost>> EngineHost::create(EngineConfig config, int output_threads) {
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig model, read_model(config));
  auto host = std::unique_ptr<EngineHost>(new EngineHost(output_threads));
  REFRAIN_ASSIGN_OR_RETURN(auto endpoint, host->bind(config));
  REFRAIN_ASSIGN_OR_RETURN(host->text_, load_text(config, model));
  REFRAIN_ASSIGN_OR_RETURN(
      host->engine_, Engine::create(std::move(config), model, host->text_.tokenizer, host->io_,
                                    host->outputs_.executors(), std::move(endpoint)));
  return host;
}

Result<std::unique_ptr<EngineHost>> EngineHost::create_behind_front(EngineConfig config,
                                                                    const std::string& address) {
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig model, read_model(config));
  auto host = std::unique_ptr<EngineHost>(new EngineHost(0));
  REFRAIN_ASSIGN_OR_RETURN(auto endpoint, host->bind(config));
  host->strand_ = host->io_.make_strand();
  REFRAIN_ASSIGN_OR_RETURN(host->door_, front::open_front_door(host->io_, host->strand_, address));
  REFRAIN_ASSIGN_OR_RETURN(
      host->engine_, Engine::create(std::move(config), model, host->door_->outputs(), host->io_,
                                    host->strand_, std::move(endpoint)));
  return host;
}

EngineHost::~EngineHost() = default;

void EngineHost::run() {
  outputs_.start([this] { io_.stop(); });
  engine_->start();
  if (door_ != nullptr) strand_->post([this] { door_->start(*engine_); });
  try {
    io_.run();
  } catch (...) {
    outputs_.join();
    throw;
  }
  outputs_.stop();
}

}  // namespace refrain
