#pragma once
// What the supervisor knows of one group of workers: how to start them, what they wrote into their
// flight recorders, how often they were lost, and what is known of the loss that is being repaired.
// A plain record; the supervisor keeps it.

#include <optional>
#include <string>
#include <vector>

#include "ipc/shm/flight_ring.h"
#include "runtime/base/unique_handle.h"
#include "runtime/supervise/incident.h"
#include "runtime/supervise/restart_policy.h"

namespace refrain {

class SupervisedGroup {
 public:
  // argv of each rank; `alone`: there is no other group, and it needs no name.
  SupervisedGroup(int index, bool alone, std::vector<std::vector<std::string>> workers,
                  int max_restarts, uint64_t seed);

  std::string name_of(int rank) const;               // "rank 1", "group 0 rank 1"
  std::string name_of(int rank, int64_t pid) const;  // "rank 1 (pid 4711)"
  // argv and the descriptors to pass on, with an empty flight recorder.
  std::vector<std::string> begin(size_t rank, std::vector<int>& pass);
  std::vector<RankFlight> flights_now() const;  // the rings as they are now
  Incident make_incident(std::string process, std::string ended, int rank);

  int index;
  bool alone;
  std::vector<std::vector<std::string>> workers;
  std::vector<RankFlight> last_run;  // pid and end of each rank's process
  RestartPolicy restarts;
  std::optional<GroupLoss> early;      // reported before the process has ended
  std::optional<Incident> incident;    // being gathered until it starts again
  bool ready = false;                  // it serves
  bool was_ready = false;              // these workers have served
  bool given_up = false;               // the coordinator said that no restart will help
  bool failed = false;                 // it is not started again
  bool isolating = false;              // a loss of workers that serve finds a request at fault
  std::optional<Duration> regrouping;  // it is being killed, to start again after a pause

 private:
  std::vector<UniqueFd> flight_fds_;  // per rank; empty where there is no memory for them
  std::vector<ipc::FlightRing> flights_;
};

}  // namespace refrain
