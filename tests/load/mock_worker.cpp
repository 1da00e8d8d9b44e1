// A worker process without a model: the real wire protocol over the real transport, tokens from a
// MockDevice, a step answered at once or at the next tick of a programmed period.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <functional>

#include "runtime/actor/io_context.h"
#include "runtime/base/build_info.h"
#include "runtime/config/model/model_config.h"
#include "tests/unit/engine_actor/mock_rank.h"

namespace refrain {
namespace {

struct Options {
  std::string address, model;
  int64_t blocks = 4096;
  int64_t step_us = 0;            // 0: at once
  int32_t audit_differences = 0;  // what each audit finds
};

int run(const Options& options) {
  IoContext io;
  const auto strand = io.make_strand();
  ipc::EndpointOptions endpoint;
  endpoint.address = options.address;
  endpoint.identity = fmt::format("mock-{}", ::getpid());
  auto client = ipc::make_zmq_client(io, endpoint, strand);
  const auto digest = model_digest(options.model);
  if (!client || !digest) {
    std::fprintf(stderr, "mock_worker: %s\n",
                 (client ? digest.error() : client.error()).message.c_str());
    return kExitConfig;
  }
  testing::MockRankOptions rank_options;
  rank_options.build_id = build_id();
  rank_options.model_digest = *digest;
  rank_options.pid = ::getpid();
  rank_options.num_kv_blocks = options.blocks;
  testing::MockRank rank(std::move(*client), rank_options);
  rank.hold_answers = options.step_us > 0;
  rank.audits = [&options](const ipc::Step&) {
    ipc::AuditResult result;
    result.audited = true;
    result.differences = options.audit_differences;
    if (result.differences > 0) result.first = "planted";
    return result;
  };
  strand->post([&rank] { rank.hello(); });
  io.on_signals({SIGINT, SIGTERM}, strand, [&io](int) { io.stop(); });
  constexpr int64_t kTidyUs = 10'000;
  const auto period = std::chrono::microseconds(options.step_us > 0 ? options.step_us : kTidyUs);
  std::function<void()> tick = [&] {
    if (!rank.held.empty()) rank.answer();
    rank.steps.clear();
    if (rank.dead) return io.stop();
    strand->post_after(period, tick);
  };
  strand->post(tick);
  io.run();
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? kExitInternal
                                                                           : kExitOk;
}

}  // namespace
}  // namespace refrain

int main(int argc, char** argv) {
  refrain::Options options;
  CLI::App app("Stands in for a worker in load tests.", "mock_worker");
  app.add_option("--coordinator", options.address)->required();
  app.add_option("--model", options.model)->required();
  app.add_option("--blocks", options.blocks)->check(CLI::Range(2, 1 << 24));
  app.add_option("--step-us", options.step_us)->check(CLI::Range(0, 60'000'000));
  app.add_option("--audit-differences", options.audit_differences)->check(CLI::Range(0, 1000));
  CLI11_PARSE(app, argc, argv);
  return refrain::run(options);
}
