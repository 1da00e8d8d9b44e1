#include "runtime/coordinator/throughput_log.h"

#include "runtime/base/log.h"

namespace refrain {
namespace {

constexpr auto kInterval = std::chrono::seconds(10);

}  // namespace

std::string throughput_line(const EngineStats& before, const EngineStats& now, double seconds) {
  const auto since = [](uint64_t from, uint64_t to) { return static_cast<double>(to - from); };
  const double prompt = since(before.prompt_tokens, now.prompt_tokens);
  const double cached = since(before.cached_prompt_tokens, now.cached_prompt_tokens);
  const double generated = since(before.generated_tokens, now.generated_tokens);
  const bool busy = now.requests_running + now.requests_waiting > 0;
  if (prompt + generated == 0 && !busy) return {};
  const double blocks = static_cast<double>(now.blocks_total);
  const double used = blocks == 0 ? 0 : 1 - static_cast<double>(now.blocks_free) / blocks;
  return fmt::format(
      "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
      "Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: "
      "{:.1f}%",
      prompt / seconds, generated / seconds, now.requests_running, now.requests_waiting, 100 * used,
      prompt == 0 ? 0 : 100 * cached / prompt);
}

ThroughputLog::ThroughputLog(Engine& engine, std::shared_ptr<Executor> strand)
    : engine_(engine), strand_(std::move(strand)), at_(strand_->clock().now()) {
  wait();
}

void ThroughputLog::wait() {
  strand_->post_after(kInterval, [this] {
    EngineStats stats = engine_.stats();
    const TimePoint now = strand_->clock().now();
    const std::string line = throughput_line(before_, stats, seconds_between(at_, now));
    if (!line.empty()) log::info("{}", line);
    before_ = std::move(stats);
    at_ = now;
    wait();
  });
}

}  // namespace refrain
