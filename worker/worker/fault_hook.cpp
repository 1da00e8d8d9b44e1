#include "worker/worker/fault_hook.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/base/log.h"

namespace refrain::worker {

namespace {

constexpr std::array<std::pair<std::string_view, FaultKind>, 7> kKinds = {{
    {"spin", FaultKind::kSpin},
    {"skip", FaultKind::kSkip},
    {"slow", FaultKind::kSlow},
    {"oom", FaultKind::kOom},
    {"oom-capture", FaultKind::kOomCapture},
    {"lose", FaultKind::kLose},
    {"hold", FaultKind::kHold},
}};

Status set_field(FaultSpec& spec, std::string_view key, std::string_view value, bool& has_kind) {
  if (key == "kind") {
    for (const auto& [name, kind] : kKinds) {
      if (name != value) continue;
      spec.kind = kind;
      has_kind = true;
      return {};
    }
    return fail_field(
        "fault", "kind is spin, skip, slow, oom, oom-capture, lose or hold, not \"{}\"", value);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0) {
    return fail_field("fault", "\"{}\" of {} is not a whole number", value, key);
  }
  if (key == "group") {
    spec.group = number;
  } else if (key == "rank") {
    spec.rank = number;
  } else if (key == "step") {
    spec.step = static_cast<StepId>(number);
  } else if (key == "token") {
    spec.token = static_cast<TokenId>(number);
  } else if (key == "ms") {
    spec.ms = number;
  } else if (key == "steps") {
    spec.steps = number;
  } else if (key == "free_mib") {
    spec.free_mib = number;
  } else if (key == "one_in" && number > 0) {
    spec.one_in = number;
  } else {
    return fail_field(
        "fault",
        "keys are kind, group, rank, step, token, ms, steps, free_mib and one_in (from "
        "1), not \"{}\"",
        key);
  }
  return {};
}

}  // namespace

Result<FaultSpec> parse_fault(std::string_view text) {
  FaultSpec spec;
  bool has_kind = false;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return fail_field("fault", "\"{}\" is not key=value", part);
    }
    REFRAIN_RETURN_IF_ERROR(
        set_field(spec, part.substr(0, equals), part.substr(equals + 1), has_kind));
  }
  if (!has_kind)
    return fail_field("fault", "give kind=spin, skip, slow, oom, oom-capture, lose or hold");
  return spec;
}

std::vector<std::unique_ptr<Buffer>> FaultHook::before_capture(Device& device) const {
  std::vector<std::unique_ptr<Buffer>> held;
  if (spec_.kind != FaultKind::kOomCapture) return held;
  log::critical("FAULT staged: capture with {} MiB of device memory", spec_.free_mib);
  // First what stays free, then pieces by halves down to a page, until even that is refused.
  held.push_back(device.allocate(static_cast<size_t>(spec_.free_mib) << 20, MemoryTag::kOther));
  for (size_t size = device.memory().free; size >= 4096;) {
    try {
      held.push_back(device.allocate(size, MemoryTag::kOther));
    } catch (const OutOfMemory&) {
      size /= 2;
    }
  }
  held.erase(held.begin());
  return held;
}

PlannedFaults FaultHook::of_transfers() const {
  if (spec_.kind == FaultKind::kLose) return {.one_in = spec_.one_in};
  if (spec_.kind != FaultKind::kHold) return {};
  return {.one_in = spec_.one_in, .held = spec_.steps, .hold = std::chrono::milliseconds(spec_.ms)};
}

bool FaultHook::is_due(const ipc::Step& step) {
  if (spec_.token) {
    return std::ranges::any_of(step.runs, [this](const ipc::Run& run) {
      return std::ranges::find(run.rows.token_ids, *spec_.token) != run.rows.token_ids.end();
    });
  }
  return spec_.step ? *spec_.step == step.step : fired_.exchange(false);
}

bool FaultHook::before_step(const ipc::Step& step, Device& device) {
  if (dropping_) return false;
  if (slow_steps_left_ > 0) {
    --slow_steps_left_;
    std::this_thread::sleep_for(std::chrono::milliseconds(spec_.ms));
    return true;
  }
  if (spec_.kind == FaultKind::kOomCapture || of_transfers().one_in > 0) return true;
  if (!is_due(step)) return true;
  log::critical("FAULT staged: kind {} at step {}", kKinds[static_cast<size_t>(spec_.kind)].first,
                step.step);
  switch (spec_.kind) {
    case FaultKind::kSpin:
      for (volatile bool always = true; always;) continue;
      return false;
    case FaultKind::kSkip:
      dropping_ = true;
      return false;
    case FaultKind::kSlow:
      slow_steps_left_ = spec_.steps;
      return true;
    case FaultKind::kOom:
      device.allocate(device.memory().total + 1, MemoryTag::kOther);  // throws OutOfMemory
      return true;
    case FaultKind::kOomCapture:
    case FaultKind::kLose:
    case FaultKind::kHold:
      return true;
  }
  return true;
}

}  // namespace refrain::worker
