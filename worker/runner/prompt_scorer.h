#pragma once
// How likely the tokens of prompts are, for the rows of a step that ask for it. Such a step runs
// without graphs, and through the head in chunks of a few rows, so that memory is bounded by the
// chunk whatever the prompt; the host waits for each chunk. Device thread; as long as the runner.

#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/device/device.h"
#include "worker/runner/hosted_program.h"

namespace refrain::worker {

class PromptScorer {
 public:
  // `scoring` outlives it. Throws OutOfMemory.
  PromptScorer(Device& device, Stream& stream, ScoringLowering& scoring, int32_t num_slots);

  // As bind_values; weights, caches and own are the hosted Program's.
  Status bind(const Weights& weights, void* arena, const std::vector<void*>& caches,
              const std::vector<Addresses>& own);
  void set_up(const ipc::SlotSetup& setup);
  static bool scores(const ipc::Step& step);
  // Runs the ops of a step of that size, which has been written. Waits for the stream.
  ipc::PromptScores run(const ipc::Step& step, const BatchShape& batch);
  // What loads kernels happens here and never for a request.
  void warm_up();

 private:
  struct Wanted {  // one row of hidden states
    int32_t row;
    TokenId token;
    int32_t num_top;
  };
  std::vector<Wanted> wanted_of(const ipc::Step& step) const;
  void run_chunk(std::span<const Wanted> wanted, const BatchDescriptor& key);
  void add_chunk(std::span<const Wanted> wanted, ipc::PromptScores& scores) const;
  template <class T>
  T* at(ValueId id) const {
    return static_cast<T*>(own_[static_cast<size_t>(id)][0]);
  }

  Stream& stream_;
  ScoringLowering& scoring_;
  std::unique_ptr<Buffer> memory_;   // pinned
  std::vector<Addresses> own_;       // by ValueId
  Weights weights_;                  // the hosted Program's
  std::vector<int32_t> num_top_;     // [S]
  std::vector<int32_t> prompt_len_;  // [S]
};

}  // namespace refrain::worker
