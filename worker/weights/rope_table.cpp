#include "worker/weights/rope_table.h"

#include <cmath>
#include <numbers>

namespace refrain::worker {
namespace {

double scale_llama3(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config, int64_t rotary_dim) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    double frequency = std::pow(config.rope_theta,
                                -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    if (config.rope_scaling.type == "linear") frequency /= config.rope_scaling.factor;
    if (config.rope_scaling.type == "llama3")
      frequency = scale_llama3(frequency, config.rope_scaling);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void fill_rope_table(const ModelConfig& config, int64_t first, int64_t positions,
                     int64_t rotary_dim, float* out) {
  const std::vector<double> frequencies = rope_frequencies(config, rotary_dim);
  const int64_t half = rotary_dim / 2;
  for (int64_t position = 0; position < positions; ++position) {
    float* row = out + position * rotary_dim;
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(first + position) * frequencies[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace refrain::worker
