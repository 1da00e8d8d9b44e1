// Many requests of random lengths, some cancelled at random moments, through the engine and a mock
// worker process; then the ledger: one end for each accepted request (I1), tokens without gap or
// repeat and equal to a run alone (I2, I3, I4), all blocks free (I5), descriptors as before (I6).
// Prints one JSON object; exit 0 when the ledger is clean.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "ipc/transport/endpoint.h"
#include "runtime/actor/io_context.h"
#include "runtime/base/build_info.h"
#include "runtime/base/check.h"
#include "runtime/base/json.h"
#include "runtime/engine/engine.h"
#include "runtime/text/tokenizer.h"
#include "tests/temporary_directory.h"
#include "tests/unit/sched/mock_device.h"

namespace refrain {
namespace {

constexpr const char* kModel = "tests/fixtures/models/qwen3";
constexpr uint64_t kVocab = 500;  // of the mock worker
constexpr int32_t kMaxModelLen = 256;
constexpr auto kPatience = std::chrono::seconds(60);  // without any end of a request

struct Options {
  size_t requests = 1'000'000;
  size_t window = 1024;  // accepted and not ended
  double cancels = 0.1;  // share of the requests
  uint64_t seed = 1;
};

size_t count_entries(const char* folder) {
  const auto entries = std::filesystem::directory_iterator(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib;
  }
  return 0;
}

// One of them per request, written on the engine's output executor.
struct Account {
  uint32_t random = 0;  // its prompt and lengths follow from it
  uint8_t finishes = 0;
  bool wrong = false;
};

class Ledger {
 public:
  Ledger(Engine& engine, const Options& options)
      : engine_(engine), options_(options), accounts_(options.requests), random_(options.seed) {}

  // Submits until the window is full; called from the main thread only.
  void feed() {
    while (next_ < options_.requests && next_ - ended_ < options_.window) {
      const size_t i = next_++;
      accounts_[i].random = static_cast<uint32_t>(random_());
      const bool cancel = accounts_[i].random % 1000 < options_.cancels * 1000;
      GenerateRequest request;
      request.prompt = prompt(i);
      request.sampling.max_tokens = max_tokens(i);
      request.sampling.ignore_eos = true;
      std::vector<TokenId> tokens;
      auto id = engine_.submit(std::move(request), [this, i, tokens = std::move(tokens)](
                                                       const RequestOutput& output) mutable {
        for (const auto& token : output.tokens) tokens.push_back(token.token);
        if (output.finish != FinishReason::kNone) on_end(i, output, tokens);
      });
      REFRAIN_CHECK(id.has_value(), "request {} was refused: {}", i, id.error().message);
      if (cancel) to_cancel_.push_back(*id);
      // Now, or when some hundred others have come.
      if (!to_cancel_.empty() && random_() % 64 == 0) {
        for (const RequestId late : to_cancel_) engine_.cancel(late);
        to_cancel_.clear();
      }
    }
  }
  size_t ended() const { return ended_; }
  bool done() const { return ended_ == options_.requests; }

  nlohmann::json report() const {
    size_t unended = 0, doubled = 0, wrong = 0;
    for (const Account& account : accounts_) {
      unended += account.finishes == 0;
      doubled += account.finishes > 1;
      wrong += account.wrong;
    }
    return {{"requests", accounts_.size()}, {"cancelled", aborted_.load()},
            {"tokens", tokens_.load()},     {"without_end", unended},
            {"with_two_ends", doubled},     {"with_wrong_tokens", wrong}};
  }

 private:
  std::vector<TokenId> prompt(size_t i) const {
    const uint32_t random = accounts_[i].random;
    const size_t length = 1 + (random >> 10) % ((random >> 4) % 8 == 0 ? 120 : 24);
    std::vector<TokenId> tokens(length);
    for (size_t at = 0; at < length; ++at)
      tokens[at] = static_cast<TokenId>(1 + (random % 5 * 31 + at * (1 + random % 3)) % 499);
    tokens.back() = static_cast<TokenId>(1 + random % 499);
    return tokens;
  }
  int64_t max_tokens(size_t i) const { return 1 + (accounts_[i].random >> 20) % 12; }

  void on_end(size_t i, const RequestOutput& output, const std::vector<TokenId>& tokens) {
    Account& account = accounts_[i];
    account.finishes = static_cast<uint8_t>(account.finishes + 1);
    const auto alone =
        testing::solo_run(prompt(i), static_cast<size_t>(max_tokens(i)), kMaxModelLen, kVocab, 0);
    const bool whole = output.finish == FinishReason::kLength && tokens == alone;
    const bool cut = output.finish == FinishReason::kAbort && tokens.size() <= alone.size() &&
                     std::equal(tokens.begin(), tokens.end(), alone.begin());
    account.wrong = !whole && !cut;
    aborted_ += output.finish == FinishReason::kAbort;
    tokens_ += tokens.size();
    ++ended_;
  }

  Engine& engine_;
  const Options options_;
  std::vector<Account> accounts_;
  std::mt19937_64 random_;
  std::vector<RequestId> to_cancel_;
  size_t next_ = 0;
  std::atomic<size_t> ended_{0}, aborted_{0}, tokens_{0};
};

pid_t start_worker(const std::string& address) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "mock_worker";
  const pid_t pid = ::fork();
  REFRAIN_CHECK(pid >= 0, "no process");
  if (pid == 0) {
    ::execl(program.c_str(), program.c_str(), "--coordinator", address.c_str(), "--model", kModel,
            "--blocks", "8192", nullptr);
    ::_exit(127);
  }
  return pid;
}

EngineConfig engine_config() {
  EngineConfig config;
  config.model = kModel;
  config.worker.max_num_seqs = 256;
  config.worker.max_num_batched_tokens = 4096;
  config.worker.max_model_len = kMaxModelLen;
  config.worker.block_size = 16;
  config.audit_rate = 0.02;
  return config;
}

int run(const Options& options) {
  const tests::TemporaryDirectory directory;
  ipc::EndpointOptions endpoint;
  endpoint.address = "ipc://" + (directory.path() / "engine").string();
  IoContext io;
  auto server = ipc::make_zmq_server(io, endpoint);
  REFRAIN_CHECK(server.has_value(), "{}", server.error().message);
  const auto model = load_model_config(kModel);
  auto tokenizer = text::Tokenizer::load(kModel);
  REFRAIN_CHECK(model && tokenizer, "{} cannot be read", kModel);
  auto engine = Engine::create(engine_config(), *model,
                               std::make_shared<const text::Tokenizer>(std::move(*tokenizer)), io,
                               {io.make_strand()}, std::move(*server));
  REFRAIN_CHECK(engine.has_value(), "{}", engine.error().message);
  const pid_t worker = start_worker(endpoint.address);
  (*engine)->start();
  std::thread thread([&io] { io.run(); });

  Ledger ledger(**engine, options);
  const auto begin = steady_clock().now();
  auto last_end = begin;
  size_t ended = 0, descriptors = 0;
  int64_t memory = 0;
  while (!ledger.done()) {
    ledger.feed();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::exchange(ended, ledger.ended()) != ledger.ended()) last_end = steady_clock().now();
    if (steady_clock().now() - last_end > kPatience) break;
    if (descriptors == 0 && ended > options.requests / 10) {
      descriptors = count_entries("/proc/self/fd");
      memory = resident_kib();
    }
  }
  const double seconds = seconds_between(begin, steady_clock().now());
  // I5 allows one second: what it took is a figure here, no verdict.
  const auto idle = steady_clock().now();
  EngineStats stats = (*engine)->stats();
  while ((stats.blocks_free != stats.blocks_total || stats.requests_running > 0) &&
         steady_clock().now() - idle < kPatience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stats = (*engine)->stats();
  }
  nlohmann::json json = ledger.report();
  json["seconds"] = seconds;
  json["seconds_until_all_free"] = seconds_between(idle, steady_clock().now());
  json["requests_per_second"] = static_cast<double>(options.requests) / seconds;
  json["steps"] = stats.steps;
  json["preemptions"] = stats.preemptions;
  json["steps_audited"] = stats.audited_steps;
  json["audit_differences"] = stats.audit_differences;
  json["group_restarts"] = stats.group_restarts;
  json["requests_resumed"] = stats.requests_resumed;
  json["blocks_not_free"] = stats.blocks_total - stats.blocks_free;
  json["ends_counted"] = stats.requests_stopped + stats.requests_at_length +
                         stats.requests_aborted + stats.requests_failed;
  json["descriptors_gained"] =
      static_cast<int64_t>(count_entries("/proc/self/fd")) - static_cast<int64_t>(descriptors);
  json["memory_gained_kib"] = resident_kib() - memory;

  (*engine)->stop();
  int status = 0;
  ::waitpid(worker, &status, 0);  // it ends by the engine's Shutdown
  json["worker_exit"] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  io.stop();
  thread.join();
  engine->reset();
  const bool clean = ledger.done() && json["without_end"] == 0 && json["with_two_ends"] == 0 &&
                     json["with_wrong_tokens"] == 0 && json["blocks_not_free"] == 0 &&
                     json["ends_counted"] == options.requests && json["worker_exit"] == 0 &&
                     json["descriptors_gained"] <= 0 && json["group_restarts"] == 0 &&
                     json["requests_resumed"] == 0 && json["audit_differences"] == 0 &&  // CG-41
                     (stats.audited_steps > 0 || stats.steps < 100);
  json["clean"] = clean;
  std::printf("%s\n", json.dump().c_str());
  return clean ? kExitOk : kExitInternal;
}

}  // namespace
}  // namespace refrain

int main(int argc, char** argv) {
  refrain::Options options;
  CLI::App app("A million requests through the engine and a mock worker.", "ledger_load");
  app.add_option("--requests", options.requests)->check(CLI::Range(1, 100'000'000));
  app.add_option("--window", options.window)->check(CLI::Range(1, 1'000'000));
  app.add_option("--cancels", options.cancels)->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return refrain::run(options);
}
