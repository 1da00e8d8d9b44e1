#pragma once
// The only source of truth on keys: which padded batches have graphs, and which of them a batch
// runs (spec CG-7 … CG-16). dispatch() is a pure function of (keys, batch): no clock, no
// allocation. Built once at start; read by any thread.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "worker/dispatch/batch_shape.h"
#include "worker/dispatch/modes.h"

namespace refrain::worker {

struct Dispatch {
  RuntimeMode mode = RuntimeMode::kNone;
  BatchDescriptor key;  // PIECEWISE: num_reqs is the batch's own
  int32_t id = -1;      // place of the key in keys(mode) as first built; -1 for NONE
};

// Configuration after defaults and checks: everything that decides keys.
struct CudagraphConfig {
  CudagraphMode mode = CudagraphMode::kFullAndPiecewise;
  std::vector<int32_t> capture_sizes;             // ascending
  std::vector<int32_t> uniform_query_lens = {1};  // the q that have keys, ascending
  int32_t uniform_query_len() const { return uniform_query_lens.back(); }
  int32_t max_num_seqs = 256;
  bool disable_padding = false;
  double max_padding_ratio = 0;  // 0: off
  bool lora = false;             // keys double: with and without adapters (CG-15)
  bool specialize_lora = true;   // false: one key serves both
  ipc::CaptureHiddenMode capture_hidden_mode = ipc::CaptureHiddenMode::kNull;  // of all keys
  std::vector<std::string> warnings;  // of resolving; shown once at start
};

struct CudagraphOptions {           // as configured, before defaults
  std::optional<std::string> mode;  // absent: FULL_AND_PIECEWISE
  bool encoder_decoder = false;
  bool enforce_eager = false;
  std::optional<std::vector<int32_t>> capture_sizes;
  std::optional<int32_t> max_capture_size;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t num_speculative_tokens = 0;
  std::vector<int32_t> uniform_query_lens;  // empty: 1 + num_speculative_tokens alone
  bool disable_padding = false;
  std::optional<double> max_padding_ratio;
  bool lora = false;
  bool specialize_lora = true;
  // What the model's Program leaves in every step.
  ipc::CaptureHiddenMode capture_hidden_mode = ipc::CaptureHiddenMode::kNull;
};

CudagraphOptions cudagraph_options(const ipc::WorkerConfig& config);

// CG-2 … CG-10. Errors name the field.
Result<CudagraphConfig> resolve_cudagraph_config(const CudagraphOptions& options,
                                                 const std::vector<AttentionGroupSupport>& groups,
                                                 bool splittable);

class CudagraphDispatcher {
 public:
  explicit CudagraphDispatcher(CudagraphConfig config);

  // NONE for every batch until set_captured() (CG-13). Throws FatalError for one of which more is
  // read than keys leave (CG-35).
  Dispatch dispatch(const BatchShape& batch) const;
  // What replicas that step together all run, each with its own rows (CG-17): the least of their
  // modes, and the key that has room for every one. `sizes`: of all of them, idle ones included;
  // one has rows.
  Dispatch dispatch_together(std::span<const ipc::StepSize> sizes) const;
  void set_captured() { captured_ = true; }
  // Keys a mode captures, from large to small (capture order, CG-21). Before any drop(), a key's id
  // is its index here.
  std::vector<BatchDescriptor> keys(RuntimeMode mode) const;
  // Capture gave up on this key (CG-25): it never matches again.
  void drop(RuntimeMode mode, int32_t id);
  const CudagraphConfig& config() const { return config_; }
  // The mode that the remaining keys amount to.
  CudagraphMode mode_in_force() const;

 private:
  struct Entry {
    BatchDescriptor key;
    int32_t id = -1;
  };
  // Keys of one kind, ascending in tokens, twice: without and with adapters.
  using Ladder = std::array<std::vector<Entry>, 2>;
  const Entry* find(const Ladder& ladder, const BatchShape& batch, RuntimeMode mode) const;
  void add(Ladder& ladder, BatchDescriptor key);
  void number(RuntimeMode mode);
  const Ladder* uniform_ladder(const BatchShape& batch) const;  // null: no keys for its q
  std::vector<Ladder*> ladders(RuntimeMode mode);

  CudagraphConfig config_;
  bool captured_ = false;
  std::vector<Ladder> uniform_;  // by uniform_query_lens
  Ladder mixed_, piecewise_;
};

}  // namespace refrain::worker
