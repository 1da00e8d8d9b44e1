#pragma once
// Passes: functions from Program to Program, and the memory plan. Order: fuse, shard,
// add_residuals, fold_norms, add_attention_plans, add_key_shares, publish_layers; validate, split
// and plan read the result, and the lowerings for some keys are made from it. Pure; any thread.

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/core/attention_units.h"
#include "kernels/core/kernel_table.h"
#include "runtime/base/result.h"
#include "worker/program/program.h"

namespace refrain::worker {

// Merges q|k|v and gate|up projections, residual add + RMSNorm, SiLU·mul, QK-norm + RoPE + KV
// write.
Program fuse(Program program);
// The same, but the last layer ends with the hidden states of all tokens.
Program fuse_all_rows(Program program);

// The form of a sharded Program for keys of at most few_rows_limit() tokens: norms, residual adds
// and SiLU·mul go into the linears beside them, and so do sums over ranks where the device can.
// `decode`: for keys of one new token a request; RoPE and KV write go into attention too, and
// selecting each request's last row falls away. Values keep their ids, so weights loaded for the
// one serve the other.
Program lower_few_rows(Program program, const kernels::FewRows& device, bool decode);
// Residual adds go into the linears before them: the form of a sharded Program for any number of
// rows, where the device's linear takes a residual at no cost.
Program add_residuals(Program program);
// The form for more rows than few, for keys of at most `rows`, up to
// kernels::FewRows::max_silu_rows: SiLU·mul goes into the linear before it; up to
// max_unit_norm_rows norms whose weights are folded go into the linear behind them, of more rows
// the linear that is sampled finds the best of each row; up to max_plain_rows it sends sums
// (send_sums). The same Program if no linear takes any of it. `decode`: for keys of one new token a
// request, as with lower_few_rows; RoPE goes into attention up to some_decode_limit().
Program lower_some_rows(Program program, const kernels::FewRows& device, int32_t rows, bool decode);
// linear -> all_reduce_add_rms_norm: what the linear makes goes to the ranks tile by tile, where
// the kernel of kernels::FewRows::max_plain_rows takes its shape, on all ranks or none.
Program send_sums(Program program);
// Marks the weights of linears behind norms that can have the norm's own weight in them: the loader
// multiplies them by it (Value::norm), and the norm's becomes ones. Of a sharded Program.
Program fold_norms(Program program);
// The same of a Program with adapters (lora.h): the linears that the device can run so take their
// adapters with them.
Program lower_lora_rows(Program program, const kernels::FewRows& device);
// What a lowered Program's exchanges between fused_linears need of the communicator.
struct PeerSums {
  int32_t places = 0;
  int64_t cols = 0;  // of the widest
};
PeerSums peer_sums(const Program& program);
// The most tokens of a key of decodes whose attention takes RoPE with it; 0: the device has none.
// The same on all ranks, which must capture the same ops.
int32_t some_decode_limit(const Program& program, const kernels::FewRows& device);
// The most tokens of a key that lower_few_rows is for; 0: the device or the Program has none.
int32_t few_rows_limit(const Program& program, const kernels::FewRows& device);

// Attention of the state groups marked in `planned` (by group) may run by a plan that the host
// makes of each step (kernels/core/attention_units.h): a value of the group's that the host writes,
// and memory for the parts of split keys. Of a sharded Program; values keep their ids.
Program add_attention_plans(Program program, const std::vector<bool>& planned);
// A group's plan in such a Program; `value` kNoValue: it has none.
struct AttentionPlanOf {
  ValueId value = kNoValue;
  kernels::AttentionPlanShape shape;
};
AttentionPlanOf attention_plan_of(const Program& program, int group);
// Attention of the state groups marked in `groups` gets its requests' keys shared out once a step,
// in values of `ints`: a share_keys in front of the first weight that is read once what it reads
// has been written, for all attention that reads the same. Of a sharded Program; values keep their
// ids.
Program add_key_shares(Program program, const std::vector<bool>& groups, int64_t ints);
// A publish_layer for each layer that has blocks, behind the ops that use them: of a Program whose
// blocks other groups read while it runs.
Program publish_layers(Program program);
ValueId layer_flags_of(const Program& program);  // its flags; kNoValue: it has none

// What a group's attention reads and writes, alike in all its layers; head_dim 0: it has none.
struct AttentionHeads {
  DType cache = DType::kFloat32, out = DType::kFloat32;
  int64_t head_dim = 0;
};
AttentionHeads attention_heads_of(const Program& program, int group);

// Narrows weights to the rank's share and inserts the collectives; a sum over ranks that only an
// AddRmsNormOp reads becomes one op with it. Head groups (a KV head and its
// query heads) are spread as evenly as they go; where there are more ranks, several have a KV head
// and share its query heads. What cannot be spread is an error that names it.
Result<Program> shard(const Program& program, int rank, int size);

// A rank's share of `units` units: the first (units mod size) ranks get one more.
struct UnitRange {
  int64_t begin = 0, end = 0;
};
UnitRange rank_share(int64_t units, int rank, int size);
// The same of KV heads: where there are more ranks than heads, each has one, and neighbours the
// same.
UnitRange kv_share(int64_t kv_heads, int rank, int size);

// [begin, end) of Program::ops.
struct OpRange {
  int begin = 0, end = 0;
};
struct PieceRange {
  OpRange ops;
  int index = 0;
  bool splitting = false;        // a splitting op, always eager
  bool of_requests = false;      // the last one, where its rows are requests and none are tokens
  std::vector<ValueId> inputs;   // read here, written before (weights and inputs not listed)
  std::vector<ValueId> outputs;  // written here, read later or kOutput
};
// CG-18, CG-19. `splitting_ops` are op names; an unknown one is an error that lists them.
Result<std::vector<PieceRange>> split_program(const Program& program,
                                              const std::vector<std::string>& splitting_ops);
std::vector<std::string> default_splitting_ops();
bool is_splittable(const Program& program, const std::vector<std::string>& splitting_ops);

// The ranges between and at attention ops that launch, but for the layer, what no earlier one does:
// of a model of equal layers four, however many it has. Sums over ranks begin and end in one range;
// equal on all ranks. In order.
std::vector<OpRange> distinct_pieces(const Program& program);

// An offset in one arena for every value that has its place there, by liveness, at these sizes.
struct MemoryPlan {
  std::vector<int64_t> offsets;  // per value; -1: not in the arena
  size_t bytes = 0;
  size_t bytes_without_reuse = 0;
};
MemoryPlan plan_memory(const Program& program, const ExtentSizes& sizes);

// A Program of fuse_all_rows, sharded, that also tells how likely the tokens of prompts are. Before
// its own head come the ops of `chunk`, which do for `rows` rows of hidden states what the head
// does for the last ones, and score them: the host runs these once for every so many rows that are
// asked for.
struct ScoringValues {
  OpRange chunk;
  int32_t rows = 0;
  // What the host fills and reads, [rows]; `index` is of the step's token rows.
  ValueId index = kNoValue, tokens = kNoValue, num_top = kNoValue;
  ValueId logprobs = kNoValue, ranks = kNoValue, top_tokens = kNoValue, top_logprobs = kNoValue;
};
struct ScoringProgram {
  Program program;
  ScoringValues values;
};
ScoringProgram score_prompts(Program program);

// Every value defined before use and once, shapes and types agree, every op has a kernel.
Status validate(const Program& program, const kernels::KernelTable& kernels);

}  // namespace refrain::worker
