#pragma once
// Captures every key of one Program at start (CG-20 … CG-25): PIECEWISE keys first, then FULL, each
// from large to small, on the stream of the context. Keys are of whatever type the Program's
// dispatcher gives (CG-35). Device thread, before the first step.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/dispatch/dispatcher.h"
#include "worker/graph/executable.h"
#include "worker/graph/lowering.h"

namespace refrain::worker {

struct CaptureProgress {
  int64_t done = 0, total = 0;  // keys
  std::string detail;           // "FULL 8 (8 requests, uniform), 0.4 ms, 12.1 KiB"
};

template <class Key>
struct CaptureHooks {
  // Puts a batch as large as the key into the step's buffers, stream-ordered: decode keys with q
  // tokens a request, mixed keys with one request holding all tokens. Called once before each
  // warm-up run.
  std::function<void(const Key&)> prepare;
  // Did this key fail on any rank? Null: there is one rank.
  std::function<bool(bool failed_here)> any_rank_failed;
  std::function<void(const CaptureProgress&)> progress;  // may be null
};

struct CaptureResult {
  std::vector<ipc::ManifestEntry> manifest;  // in capture order
  std::vector<std::string> warnings;
};

template <class Key>
struct CaptureJob {
  std::function<const Lowering&(const Key&)> lowering;  // all of one stream and communicator
  int warmup_runs = 0;
  bool keep_addresses = false;  // debug mode
  // Sizes that run in NONE, warmed up too: no request waits for a kernel to load.
  std::vector<Key> uncaptured = {};
};

// How a language model's key is told: in reports, and in the manifest.
std::string describe(const BatchDescriptor& key);
void enter_into_manifest(const BatchDescriptor& key, ipc::ManifestEntry& entry);

// What is left of a Program's mode when keys were dropped: "cudagraph_mode FULL becomes NONE";
// empty: all of it.
std::string degraded(const CudagraphDispatcher& dispatcher);

// A key as the capturer knows it, whatever its type.
struct KeyToCapture {
  RuntimeMode mode;
  int32_t id;
  std::string name;  // without the mode
  LaunchKey launch;
  const Lowering* lowering;
  std::function<void()> prepare;
  ipc::ManifestEntry entry;  // its key's fields
};
struct KeyCapturing {
  int warmup_runs;
  bool keep_addresses;
  std::function<bool(bool failed_here)> any_rank_failed;
  std::function<void(const CaptureProgress&)> progress;
  std::function<void(const KeyToCapture&, std::vector<Piece>, std::vector<ArgAddress>)> captured;
  std::function<void(const KeyToCapture&)> dropped;
  std::function<std::string()> degraded;  // once all are captured or dropped
};
CaptureResult capture_keys(const std::vector<KeyToCapture>& keys,
                           const std::vector<KeyToCapture>& uncaptured, const KeyCapturing& how,
                           GraphPool& pool);

// Fills `table`; drops from the dispatcher what memory did not allow, then marks it captured. A
// key's type has launch_key(), describe() and enter_into_manifest(); a dispatcher keys(mode),
// drop(), set_captured() and degraded().
template <class Key, class Dispatcher>
CaptureResult capture_all(const CaptureJob<Key>& job, const CaptureHooks<Key>& hooks,
                          GraphPool& pool, Dispatcher& dispatcher, ExecutableTable<Key>& table) {
  const auto to_capture = [&](RuntimeMode mode, int32_t id, const Key& key) {
    const Lowering& lowering = job.lowering(key);
    KeyToCapture one{mode, id, describe(key), launch_key(lowering.program, key), &lowering, {}, {}};
    one.prepare = [&hooks, key] { hooks.prepare(key); };
    one.entry.mode = ipc::to_string(mode);
    enter_into_manifest(key, one.entry);
    return one;
  };
  std::vector<KeyToCapture> all, uncaptured;
  for (const Key& key : job.uncaptured)
    uncaptured.push_back(to_capture(RuntimeMode::kNone, -1, key));
  std::vector<Key> keys[2];
  const RuntimeMode order[] = {RuntimeMode::kPiecewise, RuntimeMode::kFull};
  for (size_t i = 0; i < 2; ++i) {
    keys[i] = dispatcher.keys(order[i]);
    table.resize(order[i], keys[i].size());
    for (size_t id = 0; id < keys[i].size(); ++id)
      all.push_back(to_capture(order[i], static_cast<int32_t>(id), keys[i][id]));
  }
  const KeyCapturing how{
      job.warmup_runs,
      job.keep_addresses,
      hooks.any_rank_failed,
      hooks.progress,
      [&](const KeyToCapture& one, std::vector<Piece> pieces, std::vector<ArgAddress> addresses) {
        const Key& key = keys[one.mode == RuntimeMode::kFull ? 1 : 0][static_cast<size_t>(one.id)];
        table.put(one.mode, one.id, {key, std::move(pieces), std::move(addresses)});
      },
      [&](const KeyToCapture& one) { dispatcher.drop(one.mode, one.id); },
      [&] { return degraded(dispatcher); }};
  CaptureResult result = capture_keys(all, uncaptured, how, pool);
  dispatcher.set_captured();
  return result;
}

}  // namespace refrain::worker
