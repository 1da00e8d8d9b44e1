#pragma once
// Whether it pays to compute a prompt in a prefill group and move its blocks: what moving them
// takes on the link as it was measured, against what the decode group would take to compute the
// prompt itself. Pure; the engine owns it.

#include <cstdint>
#include <optional>

#include "runtime/sched/transfer_counts.h"

namespace refrain {

// The time that transfers take, as a time for each and a time for its bytes, fitted to those that
// were seen; older ones count less.
class LinkSpeed {
 public:
  void moved(const MovedBlocks& blocks);
  // Nothing: too few were seen.
  std::optional<double> seconds(double bytes) const;
  // 0: not known.
  double bytes_a_second() const;
  double bytes_a_token() const { return tokens_ > 0 ? bytes_ / tokens_ : 0; }

 private:
  static constexpr double kForgets = 0.95;
  static constexpr double kEnough = 3;
  double slope() const;  // seconds a byte
  // Sums over transfers, weighted by their age.
  double count_ = 0, bytes_ = 0, tokens_ = 0, seconds_ = 0, bytes_bytes_ = 0, bytes_seconds_ = 0;
};

class TransferChoice {
 public:
  // One in so many is moved although it seems not to pay, so that the link is measured again.
  static constexpr uint64_t kTryAgain = 32;

  void moved(const MovedBlocks& blocks) { link_.moved(blocks); }
  // A prompt of so many tokens, where a decode group computes one in `seconds_a_token`. While
  // either is not known it pays.
  bool pays(int64_t tokens, std::optional<double> seconds_a_token);
  const LinkSpeed& link() const { return link_; }
  uint64_t kept() const { return kept_; }  // prompts that were not worth it

 private:
  LinkSpeed link_;
  uint64_t kept_ = 0, refused_ = 0;
};

}  // namespace refrain
