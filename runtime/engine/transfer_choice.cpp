#include "runtime/engine/transfer_choice.h"

#include <algorithm>

namespace refrain {

void LinkSpeed::moved(const MovedBlocks& blocks) {
  const auto bytes = static_cast<double>(blocks.bytes);
  for (double* sum : {&count_, &bytes_, &tokens_, &seconds_, &bytes_bytes_, &bytes_seconds_})
    *sum *= kForgets;
  count_ += 1;
  bytes_ += bytes;
  tokens_ += static_cast<double>(blocks.tokens);
  seconds_ += blocks.seconds;
  bytes_bytes_ += bytes * bytes;
  bytes_seconds_ += bytes * blocks.seconds;
}

// Least squares. Of transfers of one size nothing follows but their rate.
double LinkSpeed::slope() const {
  const double spread = count_ * bytes_bytes_ - bytes_ * bytes_;
  if (spread <= 1e-9 * count_ * bytes_bytes_) return seconds_ / bytes_;
  const double fitted = (count_ * bytes_seconds_ - bytes_ * seconds_) / spread;
  return std::clamp(fitted, 0.0, seconds_ / bytes_);  // neither part of the time is negative
}

std::optional<double> LinkSpeed::seconds(double bytes) const {
  if (count_ < kEnough - 0.5 || bytes_ <= 0) return std::nullopt;
  const double each = (seconds_ - slope() * bytes_) / count_;
  return each + slope() * bytes;
}

double LinkSpeed::bytes_a_second() const { return bytes_ > 0 && slope() > 0 ? 1 / slope() : 0; }

bool TransferChoice::pays(int64_t tokens, std::optional<double> seconds_a_token) {
  const auto length = static_cast<double>(tokens);
  const auto moving = link_.seconds(length * link_.bytes_a_token());
  if (!moving || !seconds_a_token || *moving <= length * *seconds_a_token) return true;
  if (++refused_ % kTryAgain == 0) return true;
  ++kept_;
  return false;
}

}  // namespace refrain
