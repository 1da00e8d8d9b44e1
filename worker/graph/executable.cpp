#include "worker/graph/executable.h"

namespace refrain::worker {

void run_pieces(const OpContext& context, const Executable& executable, const BatchShape& batch,
                GraphCounters& counters, int begin, int end) {
  const int last = end < 0 ? static_cast<int>(executable.pieces.size()) : end;
  for (int i = begin; i < last; ++i) {
    const Piece& piece = executable.pieces[static_cast<size_t>(i)];
    if (const auto* graph = std::get_if<GraphPiece>(&piece)) {
      context.stream->launch(*graph->graph);
      ++counters.num_replays;
    } else {
      launch_ops(context, std::get<EagerPiece>(piece).ops, executable.key, &batch);
      ++counters.num_eager_runs;
    }
  }
}

}  // namespace refrain::worker
