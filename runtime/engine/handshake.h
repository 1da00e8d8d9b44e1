#pragma once
// What must agree before a group of workers serves (R-4, CG-22). Pure functions; any thread.

#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"

namespace refrain {

struct GroupIdentity {
  int32_t tensor_parallel_size = 1;
  std::string build_id;
  std::string model_digest;
  int32_t group = 0;
  int32_t num_groups = 1;
  std::string role = {};  // of the group; empty: groups have none
};

// Why this worker cannot join, as a sentence to act on; nothing when it can.
std::optional<std::string> refusal(const ipc::Hello& hello, const GroupIdentity& identity);

// Why these ranks (in order) cannot serve together: names two ranks and the first key in which
// their captures differ. Nothing when they agree.
std::optional<std::string> ready_mismatch(const std::vector<ipc::Ready>& ranks);

// Names the first rank and key whose launches are not those that the same rank captured in the
// group before. Nothing when there was none, or when it captured the same.
std::optional<std::string> recaptured_otherwise(const std::vector<ipc::Ready>& before,
                                                const std::vector<ipc::Ready>& now);

// Names two ranks whose answers to one step come from different keys (CG-31).
std::optional<std::string> key_mismatch(const std::vector<ipc::StepResult>& ranks);

}  // namespace refrain
