#include "worker/graph/batch_shape.h"

namespace refrain::worker {

bool is_uniform_decode(std::span<const int32_t> query_lens, std::span<const int32_t> context_lens,
                       int32_t uniform_query_len) {
  for (size_t i = 0; i < query_lens.size(); ++i) {
    if (query_lens[i] != uniform_query_len) return false;
    if (!context_lens.empty() && context_lens[i] == 0) return false;
  }
  return !query_lens.empty();
}

BatchShape batch_shape(const ipc::Step& step, int32_t uniform_query_len) {
  BatchShape shape;
  for (int32_t tokens : step.row_num_tokens) shape.num_tokens += tokens;
  shape.num_reqs = static_cast<int32_t>(step.row_num_tokens.size());
  shape.uniform = is_uniform_decode(step.row_num_tokens, step.row_computed, uniform_query_len);
  shape.cascade = step.cascade;
  shape.allowed_modes = step.allowed_modes;
  return shape;
}

}  // namespace refrain::worker
