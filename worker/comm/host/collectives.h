#pragma once
// The kernels of the host collectives: put this rank's part into its slot, meet the other ranks,
// take theirs. An exchange moves at most HostGroup::kSlotBytes a rank; its shape is fixed when it
// is launched, its live rows are read when it runs. Bound by memory bandwidth and the meeting.

#include "kernels/core/op_args.h"
#include "kernels/host/launcher.h"
#include "worker/comm/host/host_group.h"

namespace refrain::worker {

// A rectangle of a collective's data, small enough for one slot.
struct ExchangeArgs {
  HostGroup* group = nullptr;
  Collective collective = Collective::kBarrier;
  int32_t root = -1;           // whose data, or whose sum
  kernels::Matrix data;        // the rectangle's first element
  std::byte* out = nullptr;    // all_gather: where rank 0's rectangle goes; reduce_scatter: the sum
  int64_t out_rank_bytes = 0;  // from one rank's part of `out` to the next
  int64_t out_row_bytes = 0;
  int32_t row_begin = 0;  // of the rectangle in the whole
  int32_t rows = 0;       // padded rows of the rectangle
  int64_t cols = 0;
  kernels::Rows whole;  // of the collective
};

// Launches the exchanges of one collective, cut into slots.
void launch_exchanges(kernels::StreamRef stream, ExchangeArgs whole);

}  // namespace refrain::worker
