#include "runtime/supervise/group_report.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/json.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

Json loss_json(const GroupLoss& loss) {
  return {{"group", loss.group},
          {"epoch", loss.epoch},
          {"detector", loss.detector},
          {"reason", loss.reason},
          {"for_good", loss.for_good},
          {"planned", loss.planned},
          {"ranks", loss.ranks},
          {"pids", loss.pids},
          {"last_step", loss.last_step},
          {"requests", loss.requests},
          {"num_requests", loss.num_requests}};
}

GroupLoss loss_of(const Json& json) {
  GroupLoss loss;
  json.at("group").get_to(loss.group);
  json.at("epoch").get_to(loss.epoch);
  json.at("detector").get_to(loss.detector);
  json.at("reason").get_to(loss.reason);
  json.at("for_good").get_to(loss.for_good);
  json.at("planned").get_to(loss.planned);
  json.at("ranks").get_to(loss.ranks);
  json.at("pids").get_to(loss.pids);
  json.at("last_step").get_to(loss.last_step);
  json.at("requests").get_to(loss.requests);
  json.at("num_requests").get_to(loss.num_requests);
  return loss;
}

}  // namespace

std::string encode_report(const GroupReport& report) {
  Json json = {{"ready", report.ready}, {"group", report.group}};
  if (report.lost) json["lost"] = loss_json(*report.lost);
  if (report.isolation)
    json["isolation"] = {{"on", report.isolation->on},
                         {"explained", report.isolation->explained},
                         {"group", report.isolation->group}};
  if (report.audit)
    json["audit"] = {{"step", report.audit->step},
                     {"differences", report.audit->differences},
                     {"first", report.audit->first},
                     {"group", report.audit->group}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<GroupReport> decode_report(const std::string& line) {
  try {
    const Json json = Json::parse(line);
    GroupReport report;
    json.at("ready").get_to(report.ready);
    json.at("group").get_to(report.group);
    if (json.contains("lost")) report.lost = loss_of(json.at("lost"));
    if (json.contains("isolation"))
      report.isolation = {json.at("isolation").at("on").get<bool>(),
                          json.at("isolation").at("explained").get<int>(),
                          json.at("isolation").at("group").get<int32_t>()};
    if (json.contains("audit"))
      report.audit = {json.at("audit").at("step").get<StepId>(),
                      json.at("audit").at("differences").get<int32_t>(),
                      json.at("audit").at("first").get<std::string>(),
                      json.at("audit").at("group").get<int32_t>()};
    return report;
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kInternal, "not a report of a coordinator: {}", error.what());
  }
}

Result<SupervisorBoard> SupervisorBoard::create() {
  REFRAIN_ASSIGN_OR_RETURN(UniqueFd fd, ipc::InheritedMemory::create(kCells * sizeof(Cell)));
  return map(std::move(fd));
}

Result<SupervisorBoard> SupervisorBoard::map(UniqueFd fd) {
  SupervisorBoard board;
  REFRAIN_ASSIGN_OR_RETURN(board.memory_,
                           ipc::InheritedMemory::map(fd.get(), kCells * sizeof(Cell)));
  board.fd_ = std::move(fd);
  return board;
}

void SupervisorBoard::add(size_t cell) {
  if (cells() != nullptr) ++cells()[cell];
}

void SupervisorBoard::give_up(int group) {
  if (cells() != nullptr) cells()[2] |= uint64_t{1} << group;
}

bool SupervisorBoard::given_up(int group) const {
  return cells() != nullptr && (cells()[2] >> group & 1) != 0;
}

SupervisorBoard::Counts SupervisorBoard::counts() const {
  if (cells() == nullptr) return {};
  return {cells()[0], cells()[1]};
}

void ReportPipe::send(const GroupReport& report) {
  const std::string line = encode_report(report);
  const ssize_t written = ::write(pipe_.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()))
    log::warn("the supervisor takes no report: {}",
              written < 0 ? std::strerror(errno) : "its pipe is full");
}

}  // namespace refrain
