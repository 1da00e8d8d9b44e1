#include "worker/graph/capturer.h"

#include <algorithm>
#include <optional>

#include "kernels/core/no_room.h"
#include "runtime/base/clock.h"
#include "worker/graph/capture_digest.h"

namespace refrain::worker {

std::string describe(const BatchDescriptor& key) {
  const bool hidden = key.hidden != ipc::CaptureHiddenMode::kNull;
  return fmt::format("{} ({} requests{}{}{})", key.num_tokens, key.num_reqs,
                     key.uniform ? ", uniform" : "", key.has_lora ? ", LoRA" : "",
                     hidden ? fmt::format(", hidden {}", ipc::to_string(key.hidden)) : "");
}

void enter_into_manifest(const BatchDescriptor& key, ipc::ManifestEntry& entry) {
  entry.num_tokens = key.num_tokens;
  entry.num_reqs = key.num_reqs;
  entry.uniform = key.uniform;
  entry.has_lora = key.has_lora;
  entry.hidden = key.hidden;
}

std::string degraded(const CudagraphDispatcher& dispatcher) {
  const CudagraphMode configured = dispatcher.config().mode;
  const CudagraphMode in_force = dispatcher.mode_in_force();
  if (configured == in_force) return {};
  return fmt::format("cudagraph_mode {} becomes {}", to_string(configured), to_string(in_force));
}

namespace {

std::string describe(const KeyToCapture& key) {
  return fmt::format("{} {}", ipc::to_string(key.mode), key.name);
}

ipc::ManifestEntry manifest_entry(const KeyToCapture& key, const std::vector<Piece>& pieces,
                                  double ms) {
  ipc::ManifestEntry entry = key.entry;
  entry.pieces = static_cast<int32_t>(pieces.size());
  entry.capture_ms = ms;
  for (const Piece& piece : pieces) {
    const auto* captured = std::get_if<GraphPiece>(&piece);
    if (captured == nullptr) continue;
    entry.nodes += captured->graph->num_nodes();
    entry.bytes += static_cast<int64_t>(captured->graph->bytes());
  }
  return entry;
}

class Capturer {
 public:
  Capturer(const KeyCapturing& how, GraphPool& pool) : how_(how), pool_(pool) {}

  // None: out of memory here or on another rank; nothing of this key is kept.
  std::optional<std::vector<Piece>> capture(const KeyToCapture& key) {
    std::optional<std::vector<Piece>> pieces;
    if (warm_up(key)) {
      try {
        pieces = record(key);
      } catch (const OutOfMemory& error) {
        missing_ = error.missing;
      }
    }
    const bool failed = !pieces.has_value();
    const bool failed_anywhere = how_.any_rank_failed ? how_.any_rank_failed(failed) : failed;
    if (failed_anywhere) pieces.reset();
    return pieces;
  }
  size_t missing() const { return missing_; }  // bytes, of the last failure on this rank

  // Launches what loads kernels and chooses algorithms for this key; nobody waits for its end.
  // False: some of it found no memory. The rest is launched all the same: other ranks are in the
  // same exchanges, and only after them all ranks agree on who failed.
  bool warm_up(const KeyToCapture& key) {
    missing_ = 0;
    bool whole = true;
    Stream& stream = *key.lowering->context.stream;
    stream.tune(true);
    for (int run = 0; run < how_.warmup_runs; ++run) {
      key.prepare();
      for (const OpRange piece : key.lowering->warm_up) {
        for (int op = piece.begin; op < piece.end; ++op) {
          try {
            launch_ops(key.lowering->context, {op, op + 1}, key.launch);
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
    stream.tune(false);
    return whole;
  }

 private:
  static GraphPiece record_piece(const KeyToCapture& key, OpRange ops, bool of_requests = false) {
    const OpContext& context = key.lowering->context;
    context.stream->begin_capture();
    launch_ops(context, ops, key.launch);
    return {ops, context.stream->end_capture(), of_requests};
  }

  static std::vector<Piece> record(const KeyToCapture& key) {
    std::vector<Piece> pieces;
    if (key.mode == RuntimeMode::kFull) {
      pieces.emplace_back(record_piece(key, key.lowering->all_ops()));
      return pieces;
    }
    for (const PieceRange& piece : key.lowering->pieces) {
      if (piece.splitting) {
        pieces.emplace_back(EagerPiece{piece.ops});
      } else {
        pieces.emplace_back(record_piece(key, piece.ops, piece.of_requests));
      }
    }
    return pieces;
  }

  const KeyCapturing& how_;
  GraphPool& pool_;
  size_t missing_ = 0;
};

void enter_into_pool(const std::vector<Piece>& pieces, GraphPool& pool) {
  pool.counters().num_pieces += static_cast<int64_t>(pieces.size());
  for (const Piece& piece : pieces) {
    if (const auto* captured = std::get_if<GraphPiece>(&piece)) pool.account(*captured->graph);
  }
}

std::string dropped_warning(const std::string& keys, size_t missing, const std::string& degraded) {
  std::string text = fmt::format("out of memory while capturing {}: ", keys);
  text += missing > 0 ? fmt::format("{} bytes were missing", missing)
                      : "another rank had too little memory";
  text += "; the other keys are kept";
  if (!degraded.empty()) text += " and " + degraded;
  return text;
}

}  // namespace

CaptureResult capture_keys(const std::vector<KeyToCapture>& keys,
                           const std::vector<KeyToCapture>& uncaptured, const KeyCapturing& how,
                           GraphPool& pool) {
  CaptureResult result;
  Capturer capturer(how, pool);
  CaptureDigests digests;
  for (const KeyToCapture& key : uncaptured) {
    if (capturer.warm_up(key)) continue;
    result.warnings.push_back(fmt::format(
        "out of memory while warming up {}: {} bytes were missing; its first step may find none, "
        "either",
        describe(key), capturer.missing()));
  }
  CaptureProgress progress;
  progress.total = std::ssize(keys);
  std::string dropped;
  size_t missing = 0;
  for (const KeyToCapture& key : keys) {
    const TimePoint start = steady_clock().now();
    auto pieces = capturer.capture(key);
    const double seconds = seconds_between(start, steady_clock().now());
    ++progress.done;
    progress.detail = describe(key);
    if (pieces) {
      enter_into_pool(*pieces, pool);
      ipc::ManifestEntry entry = manifest_entry(key, *pieces, seconds * 1e3);
      digests.set(*key.lowering, *pieces, entry);
      progress.detail += fmt::format(", {:.3f} s, {} bytes", seconds, entry.bytes);
      result.manifest.push_back(std::move(entry));
      const Lowering& lowering = *key.lowering;
      how.captured(key, std::move(*pieces),
                   how.keep_addresses ? collect_addresses(lowering.context, lowering.all_ops())
                                      : std::vector<ArgAddress>());
    } else {
      how.dropped(key);
      ++pool.counters().num_captures_dropped;
      missing = std::max(missing, capturer.missing());
      dropped += (dropped.empty() ? "" : ", ") + describe(key);
      progress.detail += ", dropped: out of memory";
    }
    if (how.progress) how.progress(progress);
  }
  if (!dropped.empty())
    result.warnings.push_back(dropped_warning(dropped, missing, how.degraded()));
  return result;
}

}  // namespace refrain::worker
