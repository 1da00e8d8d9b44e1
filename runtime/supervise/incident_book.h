#pragma once
// Where a supervisor puts its incidents: records in a directory, and their count on the board that
// the coordinator shows. Lives on the supervisor's executor.

#include <optional>
#include <string>
#include <utility>

#include "runtime/supervise/group_report.h"
#include "runtime/supervise/incident.h"

namespace refrain {

class IncidentBook {
 public:
  // directory empty: only the log.
  explicit IncidentBook(std::string directory) : directory_(std::move(directory)) {
    if (auto board = SupervisorBoard::create()) board_ = std::move(*board);
  }
  SupervisorBoard& board() { return board_; }
  void record(const Incident& incident) {
    board_.count_incident();
    if (!record_incident(directory_, incident)) board_.count_unwritten();
  }
  // Records what has been gathered; nothing where there is none.
  void close(std::optional<Incident>& incident) {
    if (!incident) return;
    record(*incident);
    incident.reset();
  }

 private:
  const std::string directory_;
  SupervisorBoard board_;
};

}  // namespace refrain
