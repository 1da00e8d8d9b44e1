#pragma once
// What a coordinator tells the supervisor that started it: one JSON object a line on a pipe that it
// inherits. The supervisor restarts what was lost and writes the incident record. Pure but
// for ReportPipe, which the coordinator's engine executor owns.

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/unique_handle.h"
#include "runtime/engine/engine.h"

namespace refrain {

struct GroupReport {
  bool ready = false;             // the group serves
  std::optional<GroupLoss> lost;  // the group is lost
};

std::string encode_report(const GroupReport& report);  // one line, with its end
Result<GroupReport> decode_report(const std::string& line);

// Never blocks: what the pipe does not take is logged and gone.
class ReportPipe {
 public:
  explicit ReportPipe(UniqueFd pipe) : pipe_(std::move(pipe)) {}
  void send(const GroupReport& report);

 private:
  UniqueFd pipe_;
};

}  // namespace refrain
