#include "worker/graph/capturer.h"

#include <algorithm>

#include "kernels/core/no_room.h"
#include "runtime/base/clock.h"
#include "worker/graph/capture_digest.h"

namespace refrain::worker {
namespace {

std::string describe(RuntimeMode mode, const BatchDescriptor& key) {
  return fmt::format("{} {} ({} requests{}{})", ipc::to_string(mode), key.num_tokens, key.num_reqs,
                     key.uniform ? ", uniform" : "", key.has_lora ? ", LoRA" : "");
}

ipc::ManifestEntry manifest_entry(RuntimeMode mode, const Executable& executable, double ms) {
  ipc::ManifestEntry entry;
  entry.mode = ipc::to_string(mode);
  entry.num_tokens = executable.key.num_tokens;
  entry.num_reqs = executable.key.num_reqs;
  entry.uniform = executable.key.uniform;
  entry.has_lora = executable.key.has_lora;
  entry.pieces = static_cast<int32_t>(executable.pieces.size());
  entry.capture_ms = ms;
  for (const Piece& piece : executable.pieces) {
    const auto* captured = std::get_if<GraphPiece>(&piece);
    if (captured == nullptr) continue;
    entry.nodes += captured->graph->num_nodes();
    entry.bytes += static_cast<int64_t>(captured->graph->bytes());
  }
  return entry;
}

class Capturer {
 public:
  Capturer(const CaptureJob& job, const CaptureHooks& hooks, GraphPool& pool)
      : job_(job), hooks_(hooks), pool_(pool) {}

  // Null: out of memory here or on another rank; nothing of this key is kept.
  std::optional<Executable> capture(RuntimeMode mode, const BatchDescriptor& key) {
    std::optional<Executable> executable;
    if (warm_up(key)) {
      try {
        executable = record(mode, key, job_.lowering(key));
      } catch (const OutOfMemory& error) {
        missing_ = error.missing;
      }
    }
    const bool failed = !executable.has_value();
    const bool failed_anywhere = hooks_.any_rank_failed ? hooks_.any_rank_failed(failed) : failed;
    if (failed_anywhere) executable.reset();
    return executable;
  }
  size_t missing() const { return missing_; }  // bytes, of the last failure on this rank

  // Launches what loads kernels and chooses algorithms for this key; nobody waits for its end.
  // False: some of it found no memory. The rest is launched all the same: other ranks are in the
  // same exchanges, and only after them all ranks agree on who failed.
  bool warm_up(const BatchDescriptor& key) {
    missing_ = 0;
    bool whole = true;
    const Lowering& lowering = job_.lowering(key);
    for (int run = 0; run < job_.warmup_runs; ++run) {
      hooks_.prepare(key);
      for (const OpRange piece : lowering.warm_up) {
        for (int op = piece.begin; op < piece.end; ++op) {
          try {
            launch_ops(lowering.context, {op, op + 1}, key);
          } catch (const OutOfMemory& error) {
            whole = false;
            missing_ = std::max(missing_, error.missing);
          } catch (const kernels::NoRoomForKernel& error) {
            whole = false;
            missing_ = std::max(missing_, error.bytes_at_least);
          }
        }
      }
      ++pool_.counters().num_warmup_runs;
    }
    return whole;
  }

 private:
  static GraphPiece record_piece(const OpContext& context, OpRange ops,
                                 const BatchDescriptor& key) {
    context.stream->begin_capture();
    launch_ops(context, ops, key);
    return {ops, context.stream->end_capture()};
  }

  Executable record(RuntimeMode mode, const BatchDescriptor& key, const Lowering& lowering) const {
    const OpContext& context = lowering.context;
    Executable executable{key, {}, {}};
    if (mode == RuntimeMode::kFull) {
      executable.pieces.emplace_back(record_piece(context, lowering.all_ops(), key));
    } else {
      for (const PieceRange& piece : lowering.pieces) {
        if (piece.splitting) {
          executable.pieces.emplace_back(EagerPiece{piece.ops});
        } else {
          executable.pieces.emplace_back(record_piece(context, piece.ops, key));
        }
      }
    }
    if (job_.keep_addresses) {
      executable.addresses = collect_addresses(context, lowering.all_ops());
    }
    return executable;
  }

  const CaptureJob& job_;
  const CaptureHooks& hooks_;
  GraphPool& pool_;
  size_t missing_ = 0;
};

void enter_into_pool(const Executable& executable, GraphPool& pool) {
  pool.counters().num_pieces += static_cast<int64_t>(executable.pieces.size());
  for (const Piece& piece : executable.pieces) {
    if (const auto* captured = std::get_if<GraphPiece>(&piece)) pool.account(*captured->graph);
  }
}

std::string dropped_warning(const std::string& keys, size_t missing, CudagraphMode configured,
                            CudagraphMode in_force) {
  std::string text = fmt::format("out of memory while capturing {}: ", keys);
  text += missing > 0 ? fmt::format("{} bytes were missing", missing)
                      : "another rank had too little memory";
  text += "; the other keys are kept";
  if (configured != in_force) {
    text += fmt::format(" and cudagraph_mode {} becomes {}", to_string(configured),
                        to_string(in_force));
  }
  return text;
}

}  // namespace

CaptureResult capture_all(const CaptureJob& job, const CaptureHooks& hooks, GraphPool& pool,
                          CudagraphDispatcher& dispatcher,
                          ExecutableTable<BatchDescriptor>& table) {
  CaptureResult result;
  Capturer capturer(job, hooks, pool);
  CaptureDigests digests;
  for (const BatchDescriptor& key : job.uncaptured) {
    if (capturer.warm_up(key)) continue;
    result.warnings.push_back(fmt::format(
        "out of memory while warming up {}: {} bytes were missing; its first step may find none, "
        "either",
        describe(RuntimeMode::kNone, key), capturer.missing()));
  }
  const RuntimeMode order[] = {RuntimeMode::kPiecewise, RuntimeMode::kFull};
  CaptureProgress progress;
  for (RuntimeMode mode : order) progress.total += std::ssize(dispatcher.keys(mode));
  std::string dropped;
  size_t missing = 0;
  for (RuntimeMode mode : order) {
    const std::vector<BatchDescriptor> keys = dispatcher.keys(mode);
    table.resize(mode, keys.size());
    for (size_t id = 0; id < keys.size(); ++id) {
      const TimePoint start = steady_clock().now();
      auto executable = capturer.capture(mode, keys[id]);
      const double seconds = seconds_between(start, steady_clock().now());
      ++progress.done;
      progress.detail = describe(mode, keys[id]);
      if (executable) {
        enter_into_pool(*executable, pool);
        result.manifest.push_back(manifest_entry(mode, *executable, seconds * 1e3));
        digests.set(job.lowering(keys[id]), *executable, result.manifest.back());
        table.put(mode, static_cast<int32_t>(id), std::move(*executable));
        progress.detail +=
            fmt::format(", {:.3f} s, {} bytes", seconds, result.manifest.back().bytes);
      } else {
        dispatcher.drop(mode, static_cast<int32_t>(id));
        ++pool.counters().num_captures_dropped;
        missing = std::max(missing, capturer.missing());
        dropped += (dropped.empty() ? "" : ", ") + describe(mode, keys[id]);
        progress.detail += ", dropped: out of memory";
      }
      if (hooks.progress) hooks.progress(progress);
    }
  }
  if (!dropped.empty()) {
    result.warnings.push_back(
        dropped_warning(dropped, missing, dispatcher.config().mode, dispatcher.mode_in_force()));
  }
  dispatcher.set_captured();
  return result;
}

}  // namespace refrain::worker
