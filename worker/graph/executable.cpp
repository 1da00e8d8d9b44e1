#include "worker/graph/executable.h"

namespace refrain::worker {
namespace {

void run_eager_piece(const OpContext& context, const Executable& executable, OpRange ops,
                     const BatchShape& batch, GraphCounters& counters) {
  launch_ops(context, ops, executable.key, &batch);
  ++counters.num_eager_runs;
}

}  // namespace

void run_pieces(const OpContext& context, const Executable& executable, const BatchShape& batch,
                GraphCounters& counters, int begin, int end) {
  const int last = end < 0 ? static_cast<int>(executable.pieces.size()) : end;
  for (int i = begin; i < last; ++i) {
    const Piece& piece = executable.pieces[static_cast<size_t>(i)];
    if (const auto* graph = std::get_if<GraphPiece>(&piece)) {
      context.stream->launch(*graph->graph);
      ++counters.num_replays;
    } else {
      run_eager_piece(context, executable, std::get<EagerPiece>(piece).ops, batch, counters);
    }
  }
}

void run_pieces_eagerly(const OpContext& context, const Executable& executable,
                        const BatchShape& batch, GraphCounters& counters) {
  for (const Piece& piece : executable.pieces) {
    if (const auto* graph = std::get_if<GraphPiece>(&piece)) {
      launch_ops(context, graph->ops, executable.key);
      ++counters.num_eager_runs;
    } else {
      run_eager_piece(context, executable, std::get<EagerPiece>(piece).ops, batch, counters);
    }
  }
}

}  // namespace refrain::worker
