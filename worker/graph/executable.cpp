#include "worker/graph/executable.h"

namespace refrain::worker {

void run_pieces(const OpContext& context, const std::vector<Piece>& pieces, const RunAt& at,
                const LaunchBatch& batch, GraphCounters& counters, int begin, int end) {
  const int last = end < 0 ? static_cast<int>(pieces.size()) : end;
  for (int i = begin; i < last; ++i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    const auto* graph = std::get_if<GraphPiece>(&piece);
    if (graph != nullptr && (at.as_recorded || !graph->of_requests)) {
      context.stream->launch(*graph->graph);
      ++counters.num_replays;
    } else {
      const OpRange ops = graph != nullptr ? graph->ops : std::get<EagerPiece>(piece).ops;
      launch_ops(context, ops, at.key, &batch);
      ++counters.num_eager_runs;
    }
  }
}

void run_pieces_eagerly(const OpContext& context, const std::vector<Piece>& pieces, const RunAt& at,
                        const LaunchBatch& batch, GraphCounters& counters) {
  for (const Piece& piece : pieces) {
    if (const auto* graph = std::get_if<GraphPiece>(&piece)) {
      launch_ops(context, graph->ops, at.key);
    } else {
      launch_ops(context, std::get<EagerPiece>(piece).ops, at.key, &batch);
    }
    ++counters.num_eager_runs;
  }
}

}  // namespace refrain::worker
