#pragma once
// Units of a plan on the device, and the parts of a token's attention that are made of them.

#include <cstdint>

#include "kernels/core/attention_units.h"
#include "kernels/core/op_args.h"

namespace refrain::kernels {

__device__ inline const AttentionUnit& unit_of(const AttentionPlanArgs& planned, int32_t unit) {
  return reinterpret_cast<const AttentionUnit*>(planned.plan + kPlanHeader +
                                                planned.shape.max_tokens + 1)[unit];
}

// Where a token's part of a head lies: [head_dim] sums, the greatest score in units of log2, the
// total weight.
__device__ inline float* part_of(const AttentionArgs& args, int32_t token, int32_t part,
                                 int32_t head) {
  const int64_t row = int64_t{args.planned.plan[kPlanHeader + token]} + part;
  return args.planned.parts + (row * args.q_heads + head) * (args.head_dim + 2);
}

}  // namespace refrain::kernels
