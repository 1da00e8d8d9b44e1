#pragma once
// The only source of truth on keys: which padded batches have graphs, and which of them a batch
// runs (spec CG-7 … CG-16). dispatch() is a pure function of (keys, batch): no clock, no
// allocation. Built once at start; read by any thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "worker/graph/modes.h"

namespace refrain::worker {

// A padded batch: the key of an executable. For NONE, the batch's own numbers.
struct BatchDescriptor {
  int32_t num_tokens = 0;
  int32_t num_reqs = 0;
  bool uniform = false;  // uniform decode: every request has exactly q tokens
  bool has_lora = false;
  bool operator==(const BatchDescriptor&) const = default;
};

// What dispatch() needs to know of a step.
struct BatchShape {
  int32_t num_tokens = 0;
  int32_t num_reqs = 0;
  bool uniform = false;
  bool cascade = false;  // forbids FULL (CG-13)
  bool has_lora = false;
  uint8_t allowed_modes = 7;  // bit i: RuntimeMode i
};

struct Dispatch {
  RuntimeMode mode = RuntimeMode::kNone;
  BatchDescriptor key;
};

// Configuration after defaults and checks: everything that decides keys.
struct CudagraphConfig {
  CudagraphMode mode = CudagraphMode::kFullAndPiecewise;
  std::vector<int32_t> capture_sizes;  // ascending
  int32_t uniform_query_len = 1;       // q
  int32_t max_num_seqs = 256;
  bool disable_padding = false;
  double max_padding_ratio = 0;       // 0: off
  std::vector<std::string> warnings;  // of resolving; shown once at start
};

struct CudagraphOptions {  // as configured, before defaults
  std::string mode = "FULL_AND_PIECEWISE";
  bool enforce_eager = false;
  std::optional<std::vector<int32_t>> capture_sizes;
  std::optional<int32_t> max_capture_size;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t num_speculative_tokens = 0;
  bool disable_padding = false;
  std::optional<double> max_padding_ratio;
};

// CG-2 … CG-10. Errors name the field.
Result<CudagraphConfig> resolve_cudagraph_config(const CudagraphOptions& options,
                                                 const std::vector<AttentionGroupSupport>& groups,
                                                 bool splittable);

class CudagraphDispatcher {
 public:
  explicit CudagraphDispatcher(CudagraphConfig config);

  Dispatch dispatch(const BatchShape& batch) const;
  // Keys a mode captures, from large to small (capture order, CG-21).
  const std::vector<BatchDescriptor>& keys(RuntimeMode mode) const;
  // Capture gave up on this key (CG-25): it never matches again.
  void drop(RuntimeMode mode, const BatchDescriptor& key);
  const CudagraphConfig& config() const { return config_; }

 private:
  CudagraphConfig config_;
  std::vector<BatchDescriptor> full_;  // large to small
  std::vector<BatchDescriptor> piecewise_;
};

}  // namespace refrain::worker
