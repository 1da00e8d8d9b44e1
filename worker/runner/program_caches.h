#pragma once
// The blocks of a worker's Programs, as the coordinator counts them: one list of state groups, in
// which a draft model's come last. All execution contexts have the same. Device thread.

#include <cstdint>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/runner/hosted_program.h"

namespace refrain::worker {

class ProgramCaches {
 public:
  // All outlive it.
  ProgramCaches(const ipc::WorkerConfig& config, Device& device, const HostedPrograms& programs)
      : config_(config), device_(device), programs_(programs) {}

  // The state groups with as many blocks as fit now. Errors name the option.
  Result<std::vector<ipc::StateGroup>> fitting() const;
  // The caches, with addresses for so many blocks of each group. Throws OutOfMemory.
  void make(Stream& stream, const std::vector<int64_t>& num_blocks);
  bool made() const { return model().cache != nullptr; }
  // Memory for so many blocks. Throws OutOfMemory; what one cache has got by then it keeps.
  void back(const std::vector<int64_t>& num_blocks);
  // Memory for what the captures left, unless the caches have it already; less where others on the
  // same GPU have taken of it meanwhile.
  Status back_what_is_left();
  // With memory, by state group.
  const std::vector<int64_t>& num_blocks() const { return num_blocks_; }
  static tl::unexpected<Error> does_not_fit(const std::vector<int64_t>& blocks,
                                            const OutOfMemory& error);

 private:
  HostedProgram& model() const { return *programs_.front(); }
  HostedProgram* draft() const { return programs_.size() > 1 ? programs_[1].get() : nullptr; }
  std::vector<ipc::StateGroup> groups() const;
  std::vector<int64_t> of_draft(const std::vector<int64_t>& num_blocks) const;

  const ipc::WorkerConfig& config_;
  Device& device_;
  const HostedPrograms& programs_;
  std::vector<int64_t> num_blocks_;
};

}  // namespace refrain::worker
