// prepare_inputs: integer bookkeeping, latency bound. What the step has of the step block is pulled
// out of pinned memory first, all loads under way together: one trip over the bus, a second one
// when there are updates. One block does it, and asks for no word twice: reads of one word of host
// memory follow each other, 0.6 us each (128 warps that all asked for two counts took 270 us).
// Steps of few tokens take this one block to apply the updates and fill, too; others a kernel each,
// since every block reads what the one before wrote.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scan_rows.cuh"
#include "runtime/base/ids.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kOneBlockTokens = 512;  // up to here one block does it all
constexpr int kUpdateBlocks = 64;

template <class T>
__device__ const T* part(const PrepareInputsArgs& args, size_t offset) {
  return reinterpret_cast<const T*>(args.block_copy + offset);
}

// A part of the step block, with room for whole words (step_state.cpp).
struct Part {
  size_t offset;
  int64_t bytes;
};
constexpr int64_t kWord = sizeof(uint4);

// By the threads of a block: all parts are one row of words.
template <int kParts>
__device__ void pull_parts(const PrepareInputsArgs& args, const uint8_t* from,
                           const Part (&parts)[kParts]) {
  int64_t words = 0;
#pragma unroll
  for (const Part& p : parts) words += (p.bytes + kWord - 1) / kWord;
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) {
    int64_t before = 0;
    size_t offset = 0;
#pragma unroll
    for (const Part& p : parts) {
      const int64_t past = before + (p.bytes + kWord - 1) / kWord;
      if (i >= before && i < past) offset = p.offset + static_cast<size_t>((i - before) * kWord);
      before = past;
    }
    // The host has written it since the last kernel that read it: no cached line is asked.
    const uint4 word = __ldcv(reinterpret_cast<const uint4*>(from + offset));
    *reinterpret_cast<uint4*>(args.block_copy + offset) = word;
  }
}

// The next turn's block in pinned memory; inputs.turn stays the last one's until all have read it.
__device__ const uint8_t* next_block(const PrepareInputsArgs& args) {
  static_assert(kTurns == 2);
  return (*args.inputs.turn + 1) % 2 == 0 ? args.blocks[0] : args.blocks[1];
}

__device__ void pull_rows(const PrepareInputsArgs& args, const uint8_t* from) {
  const StepLayout& l = args.layout;
  const int64_t tokens = min(args.tokens, l.max_tokens), reqs = min(args.reqs, l.max_reqs);
  const Part parts[] = {{l.header, sizeof(StepHeader)},
                        {l.token_ids, 4 * tokens},
                        {l.row_slot, 4 * reqs},
                        {l.row_query_len, 4 * reqs},
                        {l.row_context, 4 * reqs},
                        {l.row_flags, reqs},
                        {l.row_next, l.max_history > 0 ? 4 * reqs : 0}};
  pull_parts(args, from, parts);
}

__device__ void pull_updates(const PrepareInputsArgs& args, const uint8_t* from,
                             int64_t block_updates, const StepHeader& header) {
  const StepLayout& l = args.layout;
  const int64_t slot_updates = header.num_slot_updates;
  const Part parts[] = {{l.update_slot, 4 * block_updates},
                        {l.update_index, 4 * block_updates},
                        {l.update_block, 4 * block_updates},
                        {l.params_slot, 4 * slot_updates},
                        {l.params, static_cast<int64_t>(sizeof(SlotParams)) * slot_updates},
                        {l.history_part, l.max_history > 0 ? 8 * slot_updates : 0},
                        {l.history, int64_t{4} * header.num_history}};
  pull_parts(args, from, parts);
}

// One block. When it ends, the step block is here and inputs.turn is its turn.
__device__ void pull(const PrepareInputsArgs& args) {
  const uint8_t* from = next_block(args);
  pull_rows(args, from);
  __syncthreads();
  const auto& header = *part<StepHeader>(args, args.layout.header);
  if (threadIdx.x == 0) *args.inputs.turn = header.turn;
  int32_t block_updates = 0;
  for (const int32_t count : header.num_block_updates) block_updates += count;
  if (block_updates > 0 || header.num_slot_updates > 0) {
    pull_updates(args, from, block_updates, header);
    __syncthreads();
  }
}

__device__ bool keeps_history(const SlotState& slots, const SlotParams& params) {
  return slots.output_count != nullptr && slots.in_prompt != nullptr && params.uses_history != 0;
}

// The tokens that the slot of an update begins with, from `first` on in the step block; returns how
// many.
__device__ int32_t begin_history(const PrepareInputsArgs& args, int32_t update, int64_t slot,
                                 int32_t first, int64_t at, int64_t count) {
  const auto* given = part<int32_t>(args, args.layout.history_part) + 2 * update;
  const auto* tokens = part<int32_t>(args, args.layout.history) + first;
  int32_t* to = args.slots.history + slot * args.slots.history_cols + given[0];
  for (int64_t i = at; i < given[1]; i += count) to[i] = tokens[i];
  if (at == 0) {
    args.slots.history_range[2 * slot] = given[0];
    args.slots.history_range[2 * slot + 1] = given[0] + given[1];
  }
  return given[1];
}

// Thread `at` of `count` in all.
__device__ void apply_updates(const PrepareInputsArgs& args, int64_t at, int64_t count) {
  const auto& header = *part<StepHeader>(args, args.layout.header);
  const auto* slot_of = part<int32_t>(args, args.layout.params_slot);
  const auto* params = part<SlotParams>(args, args.layout.params);
  const int64_t vocab = args.slots.vocab_size;
  int32_t history = 0;
  for (int32_t i = 0; i < header.num_slot_updates; ++i) {
    const int64_t slot = slot_of[i];
    if (at == 0) args.slots.params[slot] = params[i];
    if (args.slots.history != nullptr) history += begin_history(args, i, slot, history, at, count);
    if (!keeps_history(args.slots, params[i])) continue;
    for (int64_t token = at; token < vocab; token += count) {
      args.slots.output_count[slot * vocab + token] = 0;
      args.slots.in_prompt[slot * vocab + token] = 0;
    }
  }
  const auto* slot = part<int32_t>(args, args.layout.update_slot);
  const auto* index = part<int32_t>(args, args.layout.update_index);
  const auto* block = part<int32_t>(args, args.layout.update_block);
  int64_t first = 0;  // of the group's, which follow those of the groups before it
#pragma unroll
  for (int32_t group = 0; group < kMaxPagedGroups; ++group) {
    const int64_t end = first + header.num_block_updates[group];
    for (int64_t i = first + at; i < end; i += count) {
      args.paged[group].block_table[int64_t{slot[i]} * args.max_blocks + index[i]] = block[i];
    }
    first = end;
  }
}

// A token that the message brought: part of the prompt, or an output fed again (after preemption).
__device__ void record_fed(const SlotState& slots, int64_t slot, int32_t position, int32_t token) {
  if (token < 0 || token >= slots.vocab_size) return;
  const SlotParams& params = slots.params[slot];
  if (!keeps_history(slots, params)) return;
  const int64_t at = slot * slots.vocab_size + token;
  if (position < params.prompt_len) {
    slots.in_prompt[at] = 1;
  } else {
    atomicAdd(slots.output_count + at, 1);
  }
}

__device__ bool verifies(const PrepareInputsArgs& args, int32_t row) {
  return (part<uint8_t>(args, args.layout.row_flags)[row] & kRowVerifies) != 0;
}

// Tokens before the row's first one: what the message says, or what the slot knows.
__device__ int32_t context_of(const PrepareInputsArgs& args, int32_t row) {
  if (!verifies(args, row)) return part<int32_t>(args, args.layout.row_context)[row];
  const int64_t slot = part<int32_t>(args, args.layout.row_slot)[row];
  return max(args.slots.history_range[2 * slot + 1] - 1, 0);
}

__device__ void fill_token(const PrepareInputsArgs& args, int32_t token, const int32_t* starts,
                           int32_t reqs) {
  const BatchInputs& in = args.inputs;
  int32_t low = 0, high = reqs - 1;  // the last row that starts at or before the token
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t slot = part<int32_t>(args, args.layout.row_slot)[low];
  const int32_t position = context_of(args, low) + token - starts[low];
  const bool fed = !verifies(args, low);
  int32_t id = part<int32_t>(args, args.layout.token_ids)[token];
  if (id == kTokenOnDevice) {
    if (fed || token == starts[low]) id = args.slots.last_token[slot];  // others are drafts to come
  } else {
    record_fed(args.slots, slot, position, id);
  }
  if (fed && args.slots.history != nullptr)
    args.slots.history[slot * args.slots.history_cols + position] = id;
  in.token_ids[token] = id;
  in.positions[token] = position;
  const int64_t page = slot * args.max_blocks + position / args.block_size;
#pragma unroll
  for (int32_t group = 0; group < kMaxPagedGroups; ++group) {
    if (group >= args.num_paged) break;
    const PagedInputs& paged = args.paged[group];
    paged.kv_slots[token] =
        int64_t{paged.block_table[page]} * args.block_size + position % args.block_size;
  }
}

// The logit rows of row `row`: those of its last tokens.
__device__ void fill_samples(const BatchInputs& in, int32_t row, const int32_t* samples) {
  const int32_t first = samples[row], count = samples[row + 1] - first;
  for (int32_t i = 0; i < count; ++i) {
    in.sample_slot[first + i] = in.row_slot[row];
    in.sample_flags[first + i] = in.row_flags[row];
    in.sample_lens[first + i] = in.seq_lens[row] - count + 1 + i;
    in.logit_index[first + i] = max(in.query_start[row + 1] - count + i, 0);
  }
}

// `samples`: as `starts`, of logit rows; null without speculation.
__device__ void fill_row(const PrepareInputsArgs& args, int32_t row, const int32_t* starts,
                         const int32_t* samples, int32_t live) {
  const BatchInputs& in = args.inputs;
  if (samples != nullptr) in.sample_start[row + 1] = samples[min(row + 1, live)];
  if (row >= live) {
    in.query_start[row + 1] = starts[live];
    in.seq_lens[row] = args.padded_seq_len;
    in.row_slot[row] = args.slots.num_slots;
    if (samples == nullptr) in.logit_index[row] = 0;
    in.row_flags[row] = 0;
    return;
  }
  const int32_t slot = part<int32_t>(args, args.layout.row_slot)[row];
  const int32_t end = context_of(args, row) + starts[row + 1] - starts[row];
  in.query_start[row + 1] = starts[row + 1];
  in.seq_lens[row] = end;
  in.row_slot[row] = slot;
  in.row_flags[row] = part<uint8_t>(args, args.layout.row_flags)[row];
  if (samples == nullptr) {
    in.logit_index[row] = max(starts[row + 1] - 1, 0);
    return;
  }
  fill_samples(in, row, samples);
  if (verifies(args, row)) return;
  args.slots.history_range[2 * slot + 1] = end;
  if ((in.row_flags[row] & kRowContinues) != 0) {
    args.slots.history[int64_t{slot} * args.slots.history_cols + end] =
        part<int32_t>(args, args.layout.row_next)[row];
  }
}

// Logit rows of this step, by block 0 alone: fills `samples` for fill_row, pads the rest.
__device__ int32_t count_samples(const PrepareInputsArgs& args, int32_t reqs, int32_t* samples) {
  const auto* lengths = part<int32_t>(args, args.layout.row_query_len);
  scan_rows(reqs, samples, [&](int32_t row) { return verifies(args, row) ? lengths[row] : 1; });
  const BatchInputs& in = args.inputs;
  for (int32_t i = samples[reqs] + static_cast<int32_t>(threadIdx.x); i < args.samples;
       i += static_cast<int32_t>(blockDim.x)) {
    in.sample_slot[i] = args.slots.num_slots;
    in.sample_flags[i] = 0;
    in.sample_lens[i] = args.padded_seq_len;
    in.logit_index[i] = 0;
  }
  if (threadIdx.x == 0) {
    in.sample_start[0] = 0;
    *in.live_samples = samples[reqs];
  }
  return samples[reqs];
}

// Every block scans the rows and fills its tokens; block 0 also fills the rows.
__device__ void fill(const PrepareInputsArgs& args) {
  extern __shared__ int32_t starts[];  // [layout.max_reqs + 1], twice with speculation
  const auto& header = *part<StepHeader>(args, args.layout.header);
  const int32_t reqs = header.num_reqs, tokens = header.num_tokens;
  const auto* lengths = part<int32_t>(args, args.layout.row_query_len);
  scan_rows(reqs, starts, [&](int32_t row) { return lengths[row]; });
  const auto stride = static_cast<int32_t>(gridDim.x * blockDim.x);
  for (auto t = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x); t < args.tokens;
       t += stride) {
    if (t < tokens) {
      fill_token(args, t, starts, reqs);
      continue;
    }
    args.inputs.token_ids[t] = 0;
    args.inputs.positions[t] = 0;
#pragma unroll
    for (int32_t group = 0; group < kMaxPagedGroups; ++group) {
      if (group < args.num_paged) args.paged[group].kv_slots[t] = 0;
    }
  }
  if (blockIdx.x != 0) return;
  int32_t* samples = args.slots.history == nullptr ? nullptr : starts + args.layout.max_reqs + 1;
  const int32_t logit_rows = samples == nullptr ? reqs : count_samples(args, reqs, samples);
  bool logits = header.keep_logits != 0;
  for (auto r = static_cast<int32_t>(threadIdx.x); r < args.reqs;
       r += static_cast<int32_t>(blockDim.x)) {
    fill_row(args, r, starts, samples, reqs);
    const bool samples = (args.inputs.row_flags[r] & kRowSamples) != 0;
    logits = logits || (samples && !is_plain_greedy(args.slots.params[args.inputs.row_slot[r]]));
  }
  logits = __syncthreads_or(logits) != 0;
  if (threadIdx.x == 0) {
    *args.inputs.live_tokens = tokens;
    *args.inputs.live_reqs = reqs;
    if (args.inputs.live_logits != nullptr) *args.inputs.live_logits = logits ? logit_rows : 0;
    args.inputs.query_start[0] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) prepare_kernel(PrepareInputsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  pull(args);
  apply_updates(args, threadIdx.x, blockDim.x);
  __syncthreads();
  fill(args);
}

__global__ void __launch_bounds__(kThreads) pull_kernel(PrepareInputsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  pull(args);
}

__global__ void __launch_bounds__(kThreads) update_kernel(PrepareInputsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  apply_updates(args, int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                int64_t{gridDim.x} * blockDim.x);
}

__global__ void __launch_bounds__(kThreads) fill_kernel(PrepareInputsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  fill(args);
}

}  // namespace

void prepare_inputs(StreamRef stream, const PrepareInputsArgs& args) {
  LaunchShape shape;
  shape.threads = kThreads;
  const size_t scans = args.slots.history == nullptr ? 1 : 2;
  shape.shared_bytes = scans * (static_cast<size_t>(args.layout.max_reqs) + 1) * sizeof(int32_t);
  if (args.tokens <= kOneBlockTokens) {
    shape.grid = dim3(1);
    launch<&prepare_kernel, kMaxSharedBytes - 1024>(stream, "prepare_inputs", shape, args);
    return;
  }
  LaunchShape pull;
  pull.threads = kThreads;
  launch<&pull_kernel>(stream, "prepare_inputs", pull, args);
  LaunchShape update;
  update.threads = kThreads;
  update.grid = dim3(kUpdateBlocks);
  launch<&update_kernel>(stream, "prepare_inputs", update, args);
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.tokens, kThreads)));
  launch<&fill_kernel, kMaxSharedBytes - 1024>(stream, "prepare_inputs", shape, args);
}

}  // namespace refrain::kernels
