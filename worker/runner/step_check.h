#pragma once
// Whether a step is one that its coordinator may send: slots, rows, blocks, tokens and places are
// those there are. Whoever sends another has lost count, and the worker ends. Also where the rows
// of the step that was checked last begin and end. One for each execution context; device thread.

#include <cstdint>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/runner/input_buffers.h"

namespace refrain::worker {

class StepCheck {
 public:
  // num_groups: state groups of the Program. samples: whether it samples, or else pools.
  StepCheck(const InputSizes& sizes, size_t num_groups, bool samples, int64_t max_model_len);
  // By state group.
  void set_num_blocks(std::vector<int64_t> num_blocks) { num_blocks_ = std::move(num_blocks); }
  // Of LoRA adapters; none before.
  void set_num_places(int32_t places) { num_places_ = places; }

  // Throws FatalError naming the field and row.
  void check(const ipc::Step& step);

  // Of the step that was checked last.
  bool has_row(SlotId slot) const { return row(slot).step == steps_; }
  // Position of the first token of a slot's row; of one that is verified: as it was.
  int64_t row_begin(SlotId slot) const { return row(slot).begin; }
  // Position of the token that a slot's row samples.
  int64_t row_end(SlotId slot) const { return row(slot).end; }

 private:
  struct Row {
    int64_t begin = 0, end = 0;
    uint64_t step = 0;  // by steps_
  };
  const Row& row(SlotId slot) const { return rows_[static_cast<size_t>(slot)]; }
  void check_rows(const ipc::Step& step);
  void check_row(const ipc::Step& step, size_t row, size_t first_token);
  void check_verified(const ipc::Step& step, size_t row, size_t first_token) const;
  void check_updates(StepId step, const ipc::BlockUpdates& blocks, size_t group) const;
  void check_setup(StepId step, const ipc::SlotSetup& setup) const;
  void check_tokens(StepId step, SlotId slot, const char* what,
                    const std::vector<TokenId>& tokens) const;

  const InputSizes sizes_;
  const size_t num_groups_;
  const bool samples_;
  const int64_t max_model_len_;
  std::vector<int64_t> num_blocks_;
  int32_t num_places_ = 0;
  std::vector<Row> rows_;  // [S]
  uint64_t steps_ = 0;
};

}  // namespace refrain::worker
