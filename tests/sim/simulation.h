#pragma once
// One seed: a server, its clients and what goes wrong, all chosen by the seed, under virtual time.

#include <cstdint>
#include <string>
#include <vector>

namespace refrain::sim {

struct SimReport {
  std::vector<std::string> faults;  // broken promises; empty: the seed passed
  std::vector<std::string> log;     // ManualScheduler's; lines of the simulation begin with "| "
  uint64_t requests = 0, complete = 0, aborted = 0, errors = 0, unanswered = 0, refused = 0;
  uint64_t groups_lost = 0, adoptions = 0;
  uint64_t poison = 0, isolated = 0;  // requests that end their workers; of these, ended as such
  uint64_t tokens = 0;
  double virtual_seconds = 0;
};

// Digest of a log, which two runs of one seed share.
uint64_t digest_of(const std::vector<std::string>& log);

SimReport run_seed(uint64_t seed);

}  // namespace refrain::sim
