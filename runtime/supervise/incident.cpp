#include "runtime/supervise/incident.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <tuple>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

using Json = nlohmann::json;
using ipc::FlightPhase;
using ipc::FlightRecord;

constexpr size_t kShown = 16;  // records of a rank

bool is_step(const FlightRecord& record) { return record.phase >= FlightPhase::kTaken; }

struct Steps {
  StepId done = 0, submitted = 0, taken = 0;
};

// As far as the ring goes back; a rank that starts has none.
Steps progress(const RankFlight& flight) {
  Steps steps;
  uint64_t epoch = 0;
  for (const FlightRecord& record : flight.records) {
    if (record.epoch != epoch) steps = {};
    epoch = record.epoch;
    if (!is_step(record)) continue;
    steps.taken = std::max<StepId>(steps.taken, record.step);
    if (record.phase == FlightPhase::kTaken) continue;
    steps.submitted = std::max<StepId>(steps.submitted, record.step);
    if (record.phase == FlightPhase::kDone) steps.done = std::max<StepId>(steps.done, record.step);
  }
  return steps;
}

// A rank that drops steps has taken more of them than one that waits for it.
bool hangs(const GroupLoss& loss) {
  return loss.detector == "progress" || loss.detector == "step deadline" ||
         loss.detector == "heartbeat";
}

std::string utc_time(std::chrono::system_clock::time_point now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     ms);
}

Json record_json(const FlightRecord& record, uint64_t now_ns) {
  Json json = {{"phase", ipc::to_string(record.phase)},
               {"ms_ago", static_cast<double>(now_ns - std::min(record.time_ns, now_ns)) * 1e-6}};
  if (!is_step(record)) return json;
  json["step"] = record.step;
  json["tokens"] = record.num_tokens;
  json["requests"] = record.num_reqs;
  if (record.phase != FlightPhase::kDone) {
    json["forward_mode"] = record.forward_mode <= static_cast<uint8_t>(ipc::ForwardMode::kPrebuilt)
                               ? ipc::to_string(static_cast<ipc::ForwardMode>(record.forward_mode))
                               : "unknown";
    return json;
  }
  json["mode"] = record.mode <= static_cast<uint8_t>(ipc::RuntimeMode::kFull)
                     ? ipc::to_string(static_cast<ipc::RuntimeMode>(record.mode))
                     : "unknown";
  json["device_ms"] = record.device_us / 1000.0;
  json["key"] = {{"tokens", record.key_tokens},
                 {"requests", record.key_reqs},
                 {"uniform", record.key_uniform}};
  return json;
}

Json flight_json(const RankFlight& flight, uint64_t now_ns) {
  const Steps steps = progress(flight);
  Json records = Json::array();
  const size_t skip = flight.records.size() - std::min(flight.records.size(), kShown);
  for (size_t i = skip; i < flight.records.size(); ++i)
    records.push_back(record_json(flight.records[i], now_ns));
  Json json = {{"rank", flight.rank},
               {"pid", flight.pid},
               {"last_step_done", steps.done},
               {"last_step_taken", steps.taken},
               {"records", std::move(records)}};
  json["phase"] = flight.records.empty() ? "starting" : ipc::to_string(flight.records.back().phase);
  json["ended"] = flight.ended.empty() ? Json() : Json(flight.ended);
  if (flight.group >= 0) json["group"] = flight.group;
  return json;
}

Status write_file(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return fail(ErrorCode::kUnavailable, "{}: {}", path, std::strerror(errno));
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return {};
  const std::string why = written < 0 ? std::strerror(errno) : "no space left";
  ::unlink(path.c_str());
  return fail(ErrorCode::kUnavailable, "{}: {}", path, why);
}

// Names sort by time.
void remove_oldest(const std::string& directory) {
  std::vector<std::filesystem::path> records;
  std::error_code error;  // then there is one too many
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().filename().string().starts_with("incident-")) records.push_back(entry.path());
  std::ranges::sort(records);
  for (size_t i = 0; i + kIncidentsKept < records.size(); ++i)
    std::filesystem::remove(records[i], error);
}

}  // namespace

int lagging_rank(const Incident& incident) {
  if (incident.loss && incident.loss->ranks.size() == 1 && hangs(*incident.loss))
    return incident.loss->ranks.front();
  // Groups do not step together.
  const auto same_group = [&](const RankFlight& flight) {
    return flight.group == incident.flights.front().group;
  };
  if (!std::ranges::all_of(incident.flights, same_group)) return -1;
  // A rank that misses its peer ends by itself, and may be the one that the coordinator missed.
  const auto innocence = [&](const RankFlight& flight) {
    if (flight.ended.starts_with("signal")) return 0;
    if (!flight.ended.empty()) return 1;
    const bool named = incident.loss && std::ranges::count(incident.loss->ranks, flight.rank) > 0;
    return named ? 2 : 3;
  };
  std::vector<std::pair<std::tuple<StepId, StepId, StepId, int>, int>> order;
  for (const RankFlight& flight : incident.flights) {
    const Steps steps = progress(flight);
    order.push_back({{steps.done, steps.submitted, steps.taken, innocence(flight)}, flight.rank});
  }
  if (order.empty()) return -1;
  std::ranges::sort(order);
  const bool tie = order.size() > 1 && order[0].first == order[1].first;
  return tie ? -1 : order[0].second;
}

StepId last_step(const Incident& incident) {
  StepId step = 0;
  for (const RankFlight& flight : incident.flights)
    if (incident.rank < 0 || flight.rank == incident.rank)
      step = std::max(step, progress(flight).taken);
  return step;
}

std::string incident_json(const Incident& incident) {
  const auto now_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(steady_clock().now().time_since_epoch()).count());
  const int lagging = incident.audit ? -1 : lagging_rank(incident);
  Json json = {{"time", utc_time(std::chrono::system_clock::now())},
               {"process", incident.process},
               {"step", incident.audit ? incident.audit->step : last_step(incident)},
               {"ranks", Json::array()}};
  if (incident.group >= 0) json["group"] = incident.group;
  json["ended"] = incident.ended.empty() ? Json() : Json(incident.ended);
  json["lagging_rank"] = lagging < 0 ? Json() : Json(lagging);
  for (const RankFlight& flight : incident.flights)
    json["ranks"].push_back(flight_json(flight, now_ns));
  if (incident.loss) {
    const GroupLoss& loss = *incident.loss;
    json["detector"] = loss.detector;
    json["reason"] = loss.reason;
    json["epoch"] = loss.epoch;
    json["requests_in_flight"] = loss.requests;
    json["num_requests_in_flight"] = loss.num_requests;
  } else if (incident.audit) {
    json["detector"] = "audit";
    json["reason"] = incident.audit->first;
    json["differences"] = incident.audit->differences;
  } else {  // nobody but the coordinator knows its requests
    json["detector"] = "supervisor";
    json["requests_in_flight"] = Json();
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string describe(const Incident& incident) {
  if (incident.audit)
    return fmt::format("the audit of step {}{} found {} differences, the first: {}",
                       incident.audit->step,
                       incident.group < 0 ? "" : fmt::format(" of group {}", incident.group),
                       incident.audit->differences, incident.audit->first);
  const int behind = lagging_rank(incident);
  return fmt::format("{}{}{}, last step {}{}", incident.process,
                     incident.ended.empty() ? "" : " ended by ", incident.ended,
                     last_step(incident),
                     behind < 0 ? "" : fmt::format(", rank {} is behind", behind));
}

Result<std::string> write_incident(const std::string& directory, const Incident& incident) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return fail(ErrorCode::kUnavailable, "{}: {}", directory, error.message());
  std::string time = utc_time(std::chrono::system_clock::now());
  std::erase(time, ':');
  const std::string path = fmt::format("{}/incident-{}-{}.json", directory, time, ::getpid());
  const std::string part = path.substr(0, path.rfind('/') + 1) + "." + std::to_string(::getpid());
  REFRAIN_RETURN_IF_ERROR(write_file(part, incident_json(incident)));
  std::filesystem::rename(part, path, error);
  if (error) return fail(ErrorCode::kUnavailable, "{}: {}", path, error.message());
  remove_oldest(directory);
  return path;
}

bool record_incident(const std::string& directory, const Incident& incident) {
  const std::string what = describe(incident);
  if (directory.empty()) {
    log::error("incident: {}", what);
    return true;
  }
  const auto path = write_incident(directory, incident);
  if (path) {
    log::error("incident: {}: {}", what, *path);
  } else {
    log::error("incident: {}; the record could not be written: {}", what, path.error().message);
  }
  return path.has_value();
}

}  // namespace refrain
