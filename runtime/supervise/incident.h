#pragma once
// The incident record: what was known when a process or a group was lost, or when an audit
// found a difference (CG-41), as a JSON file for people and drills. Written by the supervisor,
// never by a process that serves. Plain values; the functions are pure but for write_incident.

#include <optional>
#include <string>
#include <vector>

#include "ipc/shm/flight_ring.h"
#include "runtime/engine/engine.h"

namespace refrain {

struct RankFlight {
  int rank = 0;
  int group = -1;                          // of several
  int64_t pid = 0;                         // 0: it did not run
  std::string ended;                       // "signal 9 (Killed)"; empty: it ran
  std::vector<ipc::FlightRecord> records;  // the last ones, oldest first
};

struct Incident {
  std::string process;  // "rank 1 (pid 4711)", "coordinator (pid 4710)"
  std::string ended;    // how; empty: it hangs, or nobody knows
  int rank = -1;        // of the process; -1: the coordinator, or not known yet
  int group = -1;       // of several; -1: the coordinator, or there is one
  std::vector<RankFlight> flights;
  std::optional<GroupLoss> loss;      // what the coordinator said of it
  std::optional<AuditFinding> audit;  // then nothing is lost
};

// The rank that is behind: in a hang the one that the coordinator named, which knows more than the
// rings tell; else fewest steps done, then submitted, then taken; of equal ones the rank that a
// signal ended, then one that ended by itself, then one that the coordinator named; -1: none stands
// out.
int lagging_rank(const Incident& incident);
// The last step that this process, or for a coordinator any rank, has taken.
StepId last_step(const Incident& incident);

std::string incident_json(const Incident& incident);
std::string describe(const Incident& incident);  // in a line, for the log
// Writes <directory>/incident-<UTC time>-<n>.json whole or not at all, makes the directory if need
// be and removes all but the newest kIncidentsKept records in it. The path.
inline constexpr size_t kIncidentsKept = 32;
Result<std::string> write_incident(const std::string& directory, const Incident& incident);
// Tells it in the log and writes it, where a directory is given. Whether it could.
bool record_incident(const std::string& directory, const Incident& incident);

}  // namespace refrain
