#pragma once
// The cosines and sines of rotary position embedding, computed in double. Any thread.

#include <cstdint>
#include <vector>

#include "runtime/config/model/model_config.h"

namespace refrain::worker {

// Inverse frequencies [rotary_dim / 2]: theta^(-2i / rotary_dim), changed as rope_scaling says
// (linear: divided by factor; llama3: long wavelengths divided, a smooth ramp in between).
std::vector<double> rope_frequencies(const ModelConfig& config, int64_t rotary_dim);

// Rows [first, first + positions) of the table [max_positions, rotary_dim]: the cosines, then the
// sines.
void fill_rope_table(const ModelConfig& config, int64_t first, int64_t positions,
                     int64_t rotary_dim, float* out);

}  // namespace refrain::worker
