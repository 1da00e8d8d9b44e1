#pragma once
// What the launcher of a group's processes tells each of them by its environment: Slurm, PMIx, Open
// MPI, Kubernetes' LeaderWorkerSet, torchrun and who writes RANK and WORLD_SIZE. At start, one
// thread.

#include <functional>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace refrain::worker {

using Environment = std::function<const char*(const char* name)>;  // as std::getenv

// Two launchers that say different numbers are an error of field `rank` or `tensor-parallel-size`
// that names both variables; nothing: none says it.
Result<std::optional<int>> rank_from(const Environment& environment);
Result<std::optional<int>> size_from(const Environment& environment);
// Where the coordinator listens: REFRAIN_COORDINATOR, MASTER_ADDR with MASTER_PORT, the leader of a
// LeaderWorkerSet, the node that srun runs on. Empty: none says it.
std::string coordinator_from(const Environment& environment);

inline constexpr const char* kCoordinatorPort = "5555";  // where MASTER_PORT says no other

}  // namespace refrain::worker
