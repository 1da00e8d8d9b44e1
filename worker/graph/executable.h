#pragma once
// A Program cut into pieces for one key: eager ranges and captured graphs. NONE is one eager piece,
// FULL one graph, PIECEWISE g e e g … g. One loop runs them all; no mode below the dispatcher
// (CG-20). A key is of any type that launch_key() takes (CG-35): BatchDescriptor is a language
// model's. Device thread.

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "runtime/base/check.h"
#include "worker/device/device.h"
#include "worker/dispatch/modes.h"
#include "worker/graph/graph_pool.h"
#include "worker/graph/interpreter.h"

namespace refrain::worker {

struct EagerPiece {  // splitting ops, or everything in NONE
  OpRange ops;
};
struct GraphPiece {
  OpRange ops;  // what it recorded
  std::unique_ptr<Graph> graph;
  bool of_requests = false;  // as PieceRange; replayed for as many as were recorded
};
using Piece = std::variant<EagerPiece, GraphPiece>;

template <class Key>
struct BasicExecutable {
  Key key;
  std::vector<Piece> pieces;
  std::vector<ArgAddress> addresses;  // as captured; debug mode only
};
using Executable = BasicExecutable<BatchDescriptor>;

// At what a step runs: the executable's own key, or with fewer requests than that. A piece of
// requests is then launched and not replayed.
struct RunAt {
  LaunchKey key;
  bool as_recorded = true;
};
// Runs pieces [begin, end) for `batch`; end < 0: to the last. A step may run some pieces and go on
// later.
void run_pieces(const OpContext& context, const std::vector<Piece>& pieces, const RunAt& at,
                const LaunchBatch& batch, GraphCounters& counters, int begin = 0, int end = -1);
// The same launches with no graph: those that a graph recorded are made one by one (CG-28).
void run_pieces_eagerly(const OpContext& context, const std::vector<Piece>& pieces, const RunAt& at,
                        const LaunchBatch& batch, GraphCounters& counters);
template <class Key>
RunAt run_at(const OpContext& context, const BasicExecutable<Key>& executable, const Key& key) {
  return {launch_key(*context.program, key), key == executable.key};
}
// By an executable of whatever key, at `key`.
template <class Key, class Batch>
void run_pieces(const OpContext& context, const BasicExecutable<Key>& executable, const Key& key,
                const Batch& batch, GraphCounters& counters, int begin = 0, int end = -1) {
  run_pieces(context, executable.pieces, run_at(context, executable, key), launch_batch(batch),
             counters, begin, end);
}
template <class Key, class Batch>
void run_pieces_eagerly(const OpContext& context, const BasicExecutable<Key>& executable,
                        const Key& key, const Batch& batch, GraphCounters& counters) {
  run_pieces_eagerly(context, executable.pieces, run_at(context, executable, key),
                     launch_batch(batch), counters);
}

// Captured executables of one Program, by runtime mode and key id.
template <class Key>
class ExecutableTable {
 public:
  void resize(RuntimeMode mode, size_t keys) { of(mode).resize(keys); }
  void put(RuntimeMode mode, int32_t id, BasicExecutable<Key> executable) {
    of(mode)[static_cast<size_t>(id)] = std::move(executable);
  }
  // CG-23: after start-up nothing is captured; a key without a graph is a broken process.
  const BasicExecutable<Key>& at(RuntimeMode mode, int32_t id) const {
    const auto& entries = mode == RuntimeMode::kFull ? full_ : piecewise_;
    REFRAIN_CHECK(mode != RuntimeMode::kNone && id >= 0 &&
                      static_cast<size_t>(id) < entries.size() &&
                      entries[static_cast<size_t>(id)].has_value(),
                  "{} key {} was not captured at start-up", ipc::to_string(mode), id);
    return *entries[static_cast<size_t>(id)];
  }
  void clear() {
    full_.clear();
    piecewise_.clear();
  }

 private:
  auto& of(RuntimeMode mode) { return mode == RuntimeMode::kFull ? full_ : piecewise_; }
  std::vector<std::optional<BasicExecutable<Key>>> full_, piecewise_;
};

}  // namespace refrain::worker
