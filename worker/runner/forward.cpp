#include "worker/runner/forward.h"

namespace refrain::worker {

bool Forward::run(const HostedProgram& program, const Dispatch& dispatch,
                  const BatchDescriptor& key, const BatchShape& batch) {
  const Lowering& lowering = program.lowering(key);
  const OpContext& context = lowering.context;
  if (dispatch.mode != RuntimeMode::kNone) {
    const Executable& executable = program.executables.at(dispatch.mode, dispatch.id);
    if (eager_at_key_) {
      run_pieces_eagerly(context, executable, key, batch, counters_);
      return false;
    }
    if (debug_cudagraph_) {
      const std::string moved = describe_moved(lowering.program, executable.addresses,
                                               collect_addresses(context, lowering.all_ops()));
      REFRAIN_CHECK(moved.empty(), "replay of {} {}: {}", ipc::to_string(dispatch.mode),
                    executable.key.num_tokens, moved);
    }
    const RangeScope range(context, [&] {
      return fmt::format("step {} {}", ipc::to_string(dispatch.mode), executable.key.num_tokens);
    });
    run_pieces(context, executable, key, batch, counters_);
    return true;
  }
  launch_ops(context, lowering.all_ops(), key, &batch);
  ++counters_.num_eager_runs;
  return false;
}

}  // namespace refrain::worker
