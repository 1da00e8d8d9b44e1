// Speculation: prompt lookup and what is kept of the sampled tokens. propose_ngram reads a
// request's tokens once, a block a row, coalesced: some microseconds at 100,000 tokens, bound by
// memory. accept_drafts, propose_drafts and draft_inputs follow a few words: latency.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/wait_for_grammar.cuh"

namespace refrain::kernels {
namespace {

constexpr int kProposeThreads = 256, kAcceptThreads = 128;

__device__ int32_t live_count(const Rows& rows) {
  return rows.live == nullptr ? rows.padded : min(*rows.live, rows.padded);
}

// By one thread: puts the tokens that a row's grammar forces in place of its drafts; how many.
template <class Args>
__device__ int32_t take_forced(const Args& args, int32_t row, int32_t most, int32_t* drafts,
                               int32_t count) {
  const uint32_t turn = *args.inputs.turn;
  const GrammarDraftInputs& grammar = turn % 2 == 0 ? args.grammar[0] : args.grammar[1];
  if (!wait_for_grammar(grammar.ready + row, turn)) return 0;
  const volatile int32_t* forced = grammar.tokens + int64_t{row} * most;
  int32_t taken = 0;
  for (; taken < min(most, count) && forced[taken] >= 0; ++taken) drafts[taken] = forced[taken];
  return taken;
}

// Length and end of an occurrence as one number: longer wins, then later.
__device__ uint64_t occurrence(const int32_t* tokens, int32_t begin, int32_t end, int32_t at,
                               int32_t least, int32_t most) {
  int32_t length = 0;
  while (length < most && at - 1 - length >= begin &&
         tokens[at - 1 - length] == tokens[end - 1 - length]) {
    ++length;
  }
  if (length < least) return 0;
  return static_cast<uint64_t>(length) << 32 | static_cast<uint32_t>(at);
}

// The greatest of a block's numbers, for thread 0.
__device__ uint64_t block_max(uint64_t value) {
  __shared__ uint64_t warps[kProposeThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, value, offset);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kProposeThreads / 32; ++w) value = warps[w] > value ? warps[w] : value;
  }
  return value;
}

// Where the row's drafts begin in its history; -1: nowhere. For thread 0.
__device__ int32_t find_continuation(const ProposeNgramArgs& args, int64_t slot) {
  const int32_t* tokens = args.slots.history + slot * args.slots.history_cols;
  const int32_t begin = args.slots.history_range[2 * slot];
  const int32_t end = args.slots.history_range[2 * slot + 1];
  uint64_t best = 0;
  for (int32_t at = begin + 1 + static_cast<int32_t>(threadIdx.x); at < end;
       at += kProposeThreads) {
    const uint64_t here = occurrence(tokens, begin, end, at, args.least, args.most);
    best = here > best ? here : best;
  }
  best = block_max(best);
  return best == 0 ? -1 : static_cast<int32_t>(best & 0xffffffffu);
}

// grid: rows.
__global__ void __launch_bounds__(kProposeThreads) propose_kernel(ProposeNgramArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const auto row = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const int32_t live = live_count(args.rows);
  const auto stride = static_cast<int32_t>(gridDim.x) * kProposeThreads;
  for (int32_t t = args.inputs.query_start[live] + row * kProposeThreads + thread;
       t < args.tokens.padded; t += stride) {
    args.out[t] = 0;
  }
  if (row >= live) return;
  const int32_t first = args.inputs.query_start[row], end = args.inputs.query_start[row + 1];
  const uint8_t flags = args.inputs.row_flags[row];
  const bool verifies = (flags & kRowVerifies) != 0;
  const int32_t count = end - first - 1;
  for (int32_t t = first + thread; t < (verifies ? first + 1 : end); t += kProposeThreads) {
    args.out[t] = args.ids[t];
  }
  if (!verifies || count <= 0) {
    if (thread == 0) args.num_drafts[row] = 0;
    return;
  }
  const int64_t slot = args.inputs.row_slot[row];
  const bool wanted = (flags & kRowNoDrafts) == 0;
  const bool guided = wanted && args.slots.params[slot].follows_grammar != 0;
  const int32_t from = wanted && !guided ? find_continuation(args, slot) : -1;
  if (thread != 0) return;
  const int32_t* tokens = args.slots.history + slot * args.slots.history_cols;
  const int32_t period = args.slots.history_range[2 * slot + 1] - from;  // then they repeat
  for (int32_t i = 0; i < count; ++i) {
    args.out[first + 1 + i] = from < 0 ? args.ids[first] : tokens[from + i % period];
  }
  args.num_drafts[row] = from < 0 ? 0 : count;
  if (guided)
    args.num_drafts[row] = take_forced(args, row, args.most_drafts, args.out + first + 1, count);
}

// A thread a row; the rest of them clears padded tokens.
__global__ void __launch_bounds__(kAcceptThreads) propose_drafts_kernel(ProposeDraftsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const auto row = static_cast<int32_t>(blockIdx.x * kAcceptThreads + threadIdx.x);
  const int32_t live = live_count(args.rows);
  const auto stride = static_cast<int32_t>(gridDim.x) * kAcceptThreads;
  for (int32_t t = args.inputs.query_start[live] + row; t < args.tokens.padded; t += stride)
    args.out[t] = 0;
  if (row >= live) return;
  const int32_t first = args.inputs.query_start[row], end = args.inputs.query_start[row + 1];
  const uint8_t flags = args.inputs.row_flags[row];
  const bool verifies = (flags & kRowVerifies) != 0;
  const int32_t id = args.ids[first], count = end - first - 1;
  args.out[first] = id;
  if (!verifies || count <= 0) {
    for (int32_t t = first + 1; t < end; ++t) args.out[t] = args.ids[t];
    args.num_drafts[row] = 0;
    return;
  }
  const int64_t slot = args.inputs.row_slot[row];
  const bool wanted = (flags & kRowNoDrafts) == 0;
  const bool guided = wanted && args.params[slot].follows_grammar != 0;
  int32_t good = wanted && !guided ? 0 : -1;
  for (int32_t i = 0; i < count; ++i) {
    int32_t token = -1;
    if (i < args.most)
      token = i + 1 < args.most ? args.drafts[slot * args.most + i] : args.draft_token[slot];
    if (good == i && token >= 0) ++good;
    args.out[first + 1 + i] = good == i + 1 ? token : id;
  }
  args.num_drafts[row] =
      guided ? take_forced(args, row, args.most, args.out + first + 1, count) : max(good, 0);
}

// A thread a row.
__global__ void __launch_bounds__(kAcceptThreads) draft_inputs_kernel(DraftInputsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const auto row = static_cast<int32_t>(blockIdx.x * kAcceptThreads + threadIdx.x);
  if (row >= args.rows.padded) return;
  const int32_t live = live_count(args.rows);
  const DraftInputsArgs::Out& out = args.out;
  if (row == 0) {
    out.query_start[0] = 0;
    if (out.live_logits != nullptr) *out.live_logits = *args.step_live_logits > 0 ? live : 0;
  }
  int32_t token = 0, position = 0, seq_len = args.padded_seq_len, row_slot = args.num_slots;
  int32_t hidden = 0, sample_len = args.padded_seq_len;
  int64_t kv_slot = 0;
  uint8_t flags = 0;
  if (row < live && (args.row_flags[row] & kRowSamples) != 0) {
    const int64_t slot = args.row_slot[row];
    const int32_t last = args.token[slot];
    if (args.ahead > 0) args.drafts[slot * args.most + args.ahead - 1] = last;
    const int32_t end = args.history_range[2 * slot + 1];
    const int32_t at = end - 1 - args.back + args.ahead;
    if (last >= 0 && at >= 0 && at < args.max_blocks * args.block_size &&
        args.params[slot].uses_history == 0 && args.params[slot].follows_grammar == 0) {
      const int32_t block = args.block_table[slot * args.max_blocks + at / args.block_size];
      token = last;
      position = at;
      kv_slot = int64_t{block} * args.block_size + at % args.block_size;
      seq_len = at + 1;
      row_slot = static_cast<int32_t>(slot);
      flags = kRowSamples;
      sample_len = at + args.back + 1;
      if (out.hidden_index != nullptr) {
        const int32_t first = args.query_start[row], last_of_row = args.query_start[row + 1] - 1;
        hidden = min(max(first + end - 2 - args.positions[first], first), last_of_row);
      }
    }
  }
  if (out.hidden_index != nullptr) out.hidden_index[row] = hidden;
  if (out.sample_lens != nullptr) out.sample_lens[row] = sample_len;
  out.query_start[row + 1] = min(row + 1, live);
  out.token_ids[row] = token;
  out.positions[row] = position;
  out.kv_slots[row] = kv_slot;
  out.seq_lens[row] = seq_len;
  out.row_slot[row] = row_slot;
  out.row_flags[row] = flags;
}

__device__ void append(const SlotState& slots, int64_t slot, int32_t at, int32_t token) {
  if (at < slots.history_cols) slots.history[slot * slots.history_cols + at] = token;
  if (token >= 0 && slots.output_count != nullptr && slots.params[slot].uses_history != 0)
    atomicAdd(slots.output_count + slot * slots.vocab_size + token, 1);
}

// A warp a row, a lane a token: the sampled ones stand in the host's memory, and are read at once.
__global__ void __launch_bounds__(kAcceptThreads) accept_kernel(AcceptDraftsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const auto thread = static_cast<int32_t>(blockIdx.x * kAcceptThreads + threadIdx.x);
  const int32_t row = thread / 32, lane = thread % 32;
  if (row >= args.rows.padded) return;
  static_assert(kTurns == 2);
  const bool odd = *args.inputs.turn % 2 != 0;
  const AcceptOutputs out = odd ? args.outputs[1] : args.outputs[0];
  int32_t count = 0, proposed = 0;
  if (row < live_count(args.rows) && (args.inputs.row_flags[row] & kRowSamples) != 0) {
    const int64_t slot = args.inputs.row_slot[row];
    const int32_t* sampled =
        (odd ? args.tokens[1] : args.tokens[0]) + args.inputs.sample_start[row];
    const int32_t* drafts = args.ids + args.inputs.query_start[row] + 1;
    const int32_t end = args.slots.history_range[2 * slot + 1];
    proposed = args.num_drafts[row];
    for (bool more = true; more;) {
      const int32_t i = count + lane;
      const int32_t token = i <= proposed ? sampled[i] : -1;
      const bool right =
          i < proposed && (args.synthetic < 0 ? token == drafts[i]
                                              : right_by_chance(args.synthetic, slot, end + i));
      const int32_t wrong = __ffs(static_cast<int>(~__ballot_sync(~0u, right)));
      more = wrong == 0;
      const int32_t taken = more ? 32 : wrong;  // the first one behind right drafts included
      if (lane < taken) append(args.slots, slot, end + i, token);
      if (lane == taken - 1) args.slots.last_token[slot] = token;
      count += taken;
    }
    if (lane == 0)
      args.slots.history_range[2 * slot + 1] = min(end + count, args.slots.history_cols);
  }
  if (lane != 0) return;
  out.accepted[row] = count;
  out.drafted[row] = proposed;
}

}  // namespace

void propose_ngram(StreamRef stream, const ProposeNgramArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.rows.padded));
  shape.threads = kProposeThreads;
  launch<&propose_kernel>(stream, "propose_ngram", shape, args);
}

void propose_drafts(StreamRef stream, const ProposeDraftsArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.rows.padded, kAcceptThreads)));
  shape.threads = kAcceptThreads;
  launch<&propose_drafts_kernel>(stream, "propose_drafts", shape, args);
}

void draft_inputs(StreamRef stream, const DraftInputsArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.rows.padded, kAcceptThreads)));
  shape.threads = kAcceptThreads;
  launch<&draft_inputs_kernel>(stream, "draft_inputs", shape, args);
}

void accept_drafts(StreamRef stream, const AcceptDraftsArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.rows.padded, kAcceptThreads / 32)));
  shape.threads = kAcceptThreads;
  launch<&accept_kernel>(stream, "accept_drafts", shape, args);
}

}  // namespace refrain::kernels
