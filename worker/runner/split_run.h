#pragma once
// A run of prompts in parts, each some of the Program's pieces (CG-39): other steps use the arena
// between them, so what a part leaves for the next is kept in memory of its own. One such run at a
// time; a new one takes the place of one that nobody continued. Device thread.

#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "worker/graph/executable.h"
#include "worker/runner/hosted_program.h"

namespace refrain::worker {

class SplitRun {
 public:
  // With memory for what any of so many parts leaves at most. Null: one part is none. More
  // parts than pieces are an error.
  static Result<std::unique_ptr<SplitRun>> create(Device& device, HostedProgram& program,
                                                  int32_t parts);

  // The pieces of the step's part, for a batch that dispatch gave `key`. `executable`: its graphs,
  // cut as the lowering; null: no graphs. A part that does not follow the one before, with its rows
  // and its key, is a FatalError.
  void run(const ipc::Step& step, const Lowering& lowering, const BatchDescriptor& key,
           const Executable* executable, const BatchShape& batch, Stream& stream,
           GraphCounters& counters);

  // The step of the first part, for what came along with its rows.
  const ipc::Step& first_step() const { return first_; }

 private:
  SplitRun() = default;
  void check(const ipc::Step& step, const Lowering& lowering, const BatchDescriptor& key) const;
  // Between their places in the arena and here.
  enum class Direction : uint8_t { kKeep, kRestore };
  void copy(Direction direction, const Lowering& lowering, const BatchDescriptor& key, int piece,
            Stream& stream) const;

  int32_t parts_ = 1;
  size_t bytes_ = 0;
  std::unique_ptr<Buffer> kept_;
  // The run that was begun last.
  int32_t next_part_ = 0;  // 0: none is to be continued
  ipc::Step first_;
  BatchDescriptor key_;
  const Lowering* lowering_ = nullptr;
};

// The values that ops in front of `piece` leave to it and those behind, but for what the first ops
// make of the step's rows alone: every part makes those again.
std::vector<ValueId> values_across(const Lowering& lowering, int piece);

}  // namespace refrain::worker
