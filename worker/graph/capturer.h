#pragma once
// Captures every key of one Program at start (CG-20 … CG-25): PIECEWISE keys first, then FULL, each
// from large to small, on the stream of the context. Device thread, before the first step.

#include <functional>
#include <string>
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

struct CaptureHooks {
  // Puts a batch as large as the key into the step's buffers, stream-ordered: decode keys with q
  // tokens a request, mixed keys with one request holding all tokens. Called once before each
  // warm-up run.
  std::function<void(const BatchDescriptor&)> prepare;
  // Did this key fail on any rank? Null: there is one rank.
  std::function<bool(bool failed_here)> any_rank_failed;
  std::function<void(const CaptureProgress&)> progress;  // may be null
};

struct CaptureResult {
  std::vector<ipc::ManifestEntry> manifest;  // in capture order
  std::vector<std::string> warnings;
};

struct CaptureJob {
  LoweringOf lowering;  // all of one stream and communicator
  int warmup_runs = 0;
  bool keep_addresses = false;  // debug mode
  // Sizes that run in NONE, warmed up too: no request waits for a kernel to load.
  std::vector<BatchDescriptor> uncaptured = {};
};

// Fills `table`; drops from the dispatcher what memory did not allow, then marks it captured.
CaptureResult capture_all(const CaptureJob& job, const CaptureHooks& hooks, GraphPool& pool,
                          CudagraphDispatcher& dispatcher, ExecutableTable<BatchDescriptor>& table);

}  // namespace refrain::worker
