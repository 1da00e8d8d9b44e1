#include "runtime/engine/engine_trace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/base/json.h"

namespace refrain {
namespace {

double microseconds(TimePoint time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

}  // namespace

Result<std::unique_ptr<EngineTrace>> EngineTrace::create(const std::string& path) {
  std::error_code missing, error;
  if (std::filesystem::is_regular_file(path, missing)) {
    std::filesystem::rename(path, path + ".before", error);
  }
  std::FILE* file = error ? nullptr : std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return fail_field("--trace-file", "--trace-file {} cannot be written: {}", path,
                      error ? error.message() : std::strerror(errno));
  }
  return std::unique_ptr<EngineTrace>(new EngineTrace(file));
}

EngineTrace::EngineTrace(std::FILE* file) : file_(file, &std::fclose) {
  std::fputs("[\n", file);
  steps_of(0);
  name_track(2, "requests");
}

void EngineTrace::name_track(int thread, const std::string& name) {
  write(fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
                    thread, name));
}

EngineTrace::Steps& EngineTrace::steps_of(int32_t group) {
  const auto [at, is_new] = steps_.try_emplace(group);
  if (is_new) {
    at->second.thread = group == 0 ? 1 : 2 + group;
    name_track(at->second.thread, group == 0 ? "steps" : fmt::format("steps of group {}", group));
  }
  return at->second;
}

EngineTrace::~EngineTrace() { std::fputs("\n]\n", file_.get()); }

const char* EngineTrace::name(Phase phase) {
  return phase == Phase::kWaiting ? "waiting" : phase == Phase::kPrefill ? "prefill" : "decode";
}

void EngineTrace::write(const std::string& event) {
  if (!std::exchange(first_, false)) std::fputs(",\n", file_.get());
  std::fputs(event.c_str(), file_.get());
}

void EngineTrace::begin(RequestId id, std::string_view name, TimePoint now,
                        const std::string& arguments) {
  write(fmt::format(
      R"({{"ph":"b","cat":"request","id":{},"pid":1,"tid":2,"ts":{:.1f},"name":"{}","args":{{{}}}}})",
      id, microseconds(now), name, arguments));
}

void EngineTrace::end(RequestId id, std::string_view name, TimePoint now,
                      const std::string& arguments) {
  write(fmt::format(
      R"({{"ph":"e","cat":"request","id":{},"pid":1,"tid":2,"ts":{:.1f},"name":"{}","args":{{{}}}}})",
      id, microseconds(now), name, arguments));
}

void EngineTrace::enter(RequestId id, Request& request, Phase phase, TimePoint now) {
  end(id, name(request.phase), now);
  begin(id, name(phase), now);
  request.phase = phase;
}

void EngineTrace::accepted(RequestId id, size_t prompt_tokens, TimePoint now) {
  begin(id, fmt::format("request {}", id), now,
        fmt::format(R"("prompt_tokens":{})", prompt_tokens));
  begin(id, name(requests_[id].phase), now);
}

void EngineTrace::sent(int32_t group, const ipc::Step& step, TimePoint now,
                       const std::function<bool(RequestId)>& runs) {
  size_t rows = 0;
  for (const ipc::Run& run : step.runs) rows += run.rows.slot.size();
  steps_of(group).sent.push_back({step.step, rows, now});
  std::vector<RequestId> begun;
  for (const auto& [id, request] : requests_)
    if (request.phase == Phase::kWaiting && runs(id)) begun.push_back(id);
  std::ranges::sort(begun);
  for (const RequestId id : begun) enter(id, requests_.at(id), Phase::kPrefill, now);
}

void EngineTrace::answered(int32_t group, const ipc::StepResult& result, TimePoint now) {
  Steps& steps = steps_of(group);
  if (steps.sent.empty()) return;
  const Sent sent = steps.sent.front();
  steps.sent.pop_front();
  // One that was sent while another ran begins when that one is done.
  const TimePoint begun = std::max(sent.at, steps.last_answer);
  steps.last_answer = now;
  write(fmt::format(
      R"({{"ph":"X","pid":1,"tid":{},"ts":{:.1f},"dur":{:.1f},"name":"{} {}","args":{{"step":{},)"
      R"("requests":{},"tokens":{},"padded_tokens":{},"device_ms":{:.3f},"sent_before_us":{:.1f}}}}})",
      steps.thread, microseconds(begun), microseconds(now) - microseconds(begun),
      to_string(result.mode), result.key_tokens, result.step, sent.rows, result.num_tokens,
      result.key_tokens, result.device_ms, microseconds(begun) - microseconds(sent.at)));
}

void EngineTrace::token(RequestId id, TimePoint now) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  if (found->second.phase != Phase::kDecode) enter(id, found->second, Phase::kDecode, now);
  ++found->second.output_tokens;
}

void EngineTrace::ended(RequestId id, FinishReason reason, TimePoint now) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  end(id, name(found->second.phase), now);
  end(id, fmt::format("request {}", id), now,
      fmt::format(R"("finish_reason":"{}","output_tokens":{})", refrain::to_string(reason),
                  found->second.output_tokens));
  requests_.erase(found);
  if (requests_.empty()) std::fflush(file_.get());
}

void EngineTrace::workers_lost(int32_t group, std::string_view why, TimePoint now,
                               const std::function<bool(RequestId)>& had) {
  Steps& steps = steps_of(group);
  steps.sent.clear();
  std::vector<RequestId> ran;
  for (const auto& [id, request] : requests_)
    if (request.phase != Phase::kWaiting && had(id)) ran.push_back(id);
  std::ranges::sort(ran);
  for (const RequestId id : ran) enter(id, requests_.at(id), Phase::kWaiting, now);
  write(fmt::format(
      R"({{"ph":"i","s":"p","pid":1,"tid":{},"ts":{:.1f},"name":"workers lost","args":{{"why":{}}}}})",
      steps.thread, microseconds(now),
      nlohmann::json(why).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
  std::fflush(file_.get());
}

}  // namespace refrain
