#pragma once
// Pieces of work cut into equal runs, one for each worker of a launch. Plain functions: the host's
// tests call them too.

#include <cstdint>

namespace refrain::kernels {

// Equal shares of `total` pieces: worker w has [first(w), first(w + 1)). Of fewer pieces than
// workers each of the first `total` workers has one and the others have none, so that all workers
// from the owner of a piece to the owner of a later one have pieces.
class Shares {
 public:
  constexpr Shares(int64_t total, int64_t workers)
      : total_(total), workers_(total < workers ? total : workers) {}

  constexpr int64_t first(int64_t worker) const {
    return worker < workers_ ? total_ * worker / workers_ : total_;
  }
  // Of a piece in [0, total).
  constexpr int32_t owner(int64_t piece) const {
    return static_cast<int32_t>(((piece + 1) * workers_ - 1) / total_);
  }

 private:
  int64_t total_;
  int64_t workers_;  // that have pieces
};

}  // namespace refrain::kernels
