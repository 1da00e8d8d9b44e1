// prepare_inputs: integer bookkeeping, latency bound. What the step has of the step block is pulled
// out of pinned memory first, all loads under way together: one trip over the bus, a second one
// when there are updates. One block does it, and asks for no word twice: reads of one word of host
// memory follow each other, 0.6 us each (128 warps that all asked for two counts took 270 us).
// Steps of few tokens take this one block to apply the updates and fill, too; others a kernel each,
// since every block reads what the one before wrote.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
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
  const Part parts[] = {{l.header, sizeof(StepHeader)}, {l.token_ids, 4 * tokens},
                        {l.row_slot, 4 * reqs},         {l.row_query_len, 4 * reqs},
                        {l.row_context, 4 * reqs},      {l.row_flags, reqs}};
  pull_parts(args, from, parts);
}

__device__ void pull_updates(const PrepareInputsArgs& args, const uint8_t* from,
                             int64_t block_updates, int64_t slot_updates) {
  const StepLayout& l = args.layout;
  const Part parts[] = {{l.update_slot, 4 * block_updates},
                        {l.update_index, 4 * block_updates},
                        {l.update_block, 4 * block_updates},
                        {l.params_slot, 4 * slot_updates},
                        {l.params, static_cast<int64_t>(sizeof(SlotParams)) * slot_updates}};
  pull_parts(args, from, parts);
}

// One block. When it ends, the step block is here and inputs.turn is its turn.
__device__ void pull(const PrepareInputsArgs& args) {
  const uint8_t* from = next_block(args);
  pull_rows(args, from);
  __syncthreads();
  const auto& header = *part<StepHeader>(args, args.layout.header);
  if (threadIdx.x == 0) *args.inputs.turn = header.turn;
  if (header.num_block_updates > 0 || header.num_slot_updates > 0) {
    pull_updates(args, from, header.num_block_updates, header.num_slot_updates);
    __syncthreads();
  }
}

__device__ bool keeps_history(const SlotState& slots, const SlotParams& params) {
  return slots.output_count != nullptr && slots.in_prompt != nullptr && params.uses_history != 0;
}

// Thread `at` of `count` in all.
__device__ void apply_updates(const PrepareInputsArgs& args, int64_t at, int64_t count) {
  const auto& header = *part<StepHeader>(args, args.layout.header);
  const auto* slot_of = part<int32_t>(args, args.layout.params_slot);
  const auto* params = part<SlotParams>(args, args.layout.params);
  const int64_t vocab = args.slots.vocab_size;
  for (int32_t i = 0; i < header.num_slot_updates; ++i) {
    const int64_t slot = slot_of[i];
    if (at == 0) args.slots.params[slot] = params[i];
    if (!keeps_history(args.slots, params[i])) continue;
    for (int64_t token = at; token < vocab; token += count) {
      args.slots.output_count[slot * vocab + token] = 0;
      args.slots.in_prompt[slot * vocab + token] = 0;
    }
  }
  const auto* slot = part<int32_t>(args, args.layout.update_slot);
  const auto* index = part<int32_t>(args, args.layout.update_index);
  const auto* block = part<int32_t>(args, args.layout.update_block);
  for (int64_t i = at; i < header.num_block_updates; i += count) {
    args.slots.block_table[int64_t{slot[i]} * args.slots.max_blocks + index[i]] = block[i];
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

// starts[r]: the first token of row r, starts[reqs]: the number of tokens. One block, by scanning
// blockDim.x rows at a time.
__device__ void scan_rows(const PrepareInputsArgs& args, int32_t reqs, int32_t* starts) {
  __shared__ int32_t warp_total[32];
  const auto* lengths = part<int32_t>(args, args.layout.row_query_len);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int32_t before = 0;
  for (int32_t first = 0; first < reqs; first += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = first + static_cast<int32_t>(threadIdx.x);
    const int32_t length = row < reqs ? lengths[row] : 0;
    int32_t sum = length;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    __syncthreads();  // the last round's totals have been read
    if (lane == 31) warp_total[warp] = sum;
    __syncthreads();
    int32_t all = 0, mine = before;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) mine += warp_total[w];
      all += warp_total[w];
    }
    if (row < reqs) starts[row] = mine + sum - length;
    before += all;
  }
  if (threadIdx.x == 0) starts[reqs] = before;
  __syncthreads();
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
  const int32_t position = part<int32_t>(args, args.layout.row_context)[low] + token - starts[low];
  int32_t id = part<int32_t>(args, args.layout.token_ids)[token];
  if (id == kTokenOnDevice) {
    id = args.slots.last_token[slot];
  } else {
    record_fed(args.slots, slot, position, id);
  }
  const int32_t* blocks = args.slots.block_table + slot * args.slots.max_blocks;
  in.token_ids[token] = id;
  in.positions[token] = position;
  in.kv_slots[token] =
      int64_t{blocks[position / args.block_size]} * args.block_size + position % args.block_size;
}

__device__ void fill_row(const PrepareInputsArgs& args, int32_t row, const int32_t* starts,
                         int32_t live) {
  const BatchInputs& in = args.inputs;
  if (row >= live) {
    in.query_start[row + 1] = starts[live];
    in.seq_lens[row] = args.padded_seq_len;
    in.row_slot[row] = args.slots.num_slots;
    in.logit_index[row] = 0;
    in.row_flags[row] = 0;
    return;
  }
  in.query_start[row + 1] = starts[row + 1];
  in.seq_lens[row] =
      part<int32_t>(args, args.layout.row_context)[row] + starts[row + 1] - starts[row];
  in.row_slot[row] = part<int32_t>(args, args.layout.row_slot)[row];
  in.logit_index[row] = max(starts[row + 1] - 1, 0);
  in.row_flags[row] = part<uint8_t>(args, args.layout.row_flags)[row];
}

// Every block scans the rows and fills its tokens; block 0 also fills the rows.
__device__ void fill(const PrepareInputsArgs& args) {
  extern __shared__ int32_t starts[];  // [layout.max_reqs + 1]
  const auto& header = *part<StepHeader>(args, args.layout.header);
  const int32_t reqs = header.num_reqs, tokens = header.num_tokens;
  scan_rows(args, reqs, starts);
  const auto stride = static_cast<int32_t>(gridDim.x * blockDim.x);
  for (auto t = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x); t < args.tokens;
       t += stride) {
    if (t < tokens) {
      fill_token(args, t, starts, reqs);
      continue;
    }
    args.inputs.token_ids[t] = 0;
    args.inputs.positions[t] = 0;
    args.inputs.kv_slots[t] = 0;
  }
  if (blockIdx.x != 0) return;
  bool logits = header.keep_logits != 0;
  for (auto r = static_cast<int32_t>(threadIdx.x); r < args.reqs;
       r += static_cast<int32_t>(blockDim.x)) {
    fill_row(args, r, starts, reqs);
    const bool samples = (args.inputs.row_flags[r] & kRowSamples) != 0;
    logits = logits || (samples && !is_plain_greedy(args.slots.params[args.inputs.row_slot[r]]));
  }
  logits = __syncthreads_or(logits) != 0;
  if (threadIdx.x == 0) {
    *args.inputs.live_tokens = tokens;
    *args.inputs.live_reqs = reqs;
    if (args.inputs.live_logits != nullptr) *args.inputs.live_logits = logits ? reqs : 0;
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
  shape.shared_bytes = (static_cast<size_t>(args.layout.max_reqs) + 1) * sizeof(int32_t);
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
