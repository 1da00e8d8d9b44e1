#pragma once
// What a coordinator tells the supervisor that started it: one JSON object a line on a pipe that it
// inherits. The supervisor restarts what was lost and writes the incident record. Pure but
// for ReportPipe, which the coordinator's engine executor owns.

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "ipc/shm/inherited_memory.h"
#include "runtime/base/unique_handle.h"
#include "runtime/engine/engine.h"

namespace refrain {

struct GroupReport {
  bool ready = false;                                 // the group serves
  std::optional<GroupLoss> lost;                      // the group is lost
  std::optional<Isolation> isolation = std::nullopt;  // it begins, or is over
  std::optional<AuditFinding> audit = std::nullopt;   // the group goes on
  int32_t group = 0;                                  // that is ready
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

// What the supervisor counts and its coordinator shows in /metrics: shared memory, passed on to
// every coordinator, so that the counts outlive each of them. Any thread.
class SupervisorBoard {
 public:
  struct Counts {
    uint64_t incidents = 0;  // lost coordinators and groups, audits with differences
    uint64_t unwritten = 0;  // of these, records that could not be written
  };
  static Result<SupervisorBoard> create();
  static Result<SupervisorBoard> map(UniqueFd fd);

  int fd() const { return fd_.get(); }  // -1: there is none, and nothing is counted
  void count_incident() { add(0); }
  void count_unwritten() { add(1); }
  // A group is not started again: the coordinator looks for it.
  void give_up(int group);
  bool given_up(int group) const;
  Counts counts() const;

 private:
  using Cell = std::atomic<uint64_t>;
  static constexpr size_t kCells = 3;  // incidents, unwritten, groups given up as bits
  void add(size_t cell);
  Cell* cells() const { return static_cast<Cell*>(memory_.data()); }
  UniqueFd fd_;
  ipc::InheritedMemory memory_;
};

}  // namespace refrain
