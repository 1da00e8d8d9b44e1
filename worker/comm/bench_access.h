#pragma once
// What benchmarks and tests ask of a communicator besides its collectives; every one that a device
// makes has it. Device thread.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"

namespace refrain::worker {

inline constexpr const char* kNcclWay = "nccl";

class BenchAccess {
 public:
  // The ways in which all_reduce can sum a message of `bytes`, its own choice first; and holding it
  // to one of them ("": it chooses), which every rank does alike.
  virtual std::vector<std::string> sum_ways(size_t bytes) const = 0;
  virtual void hold_to_sum_way(const std::string& way) = 0;
  // Memory of the next rank that this one can copy to; of its own where ranks share one memory, or
  // in a group of one. Made by all ranks together, and given back so: a barrier() stands between
  // the last copy and the end of the handles.
  virtual std::unique_ptr<Buffer> next_rank_memory(size_t bytes) = 0;

 protected:
  ~BenchAccess() = default;
};

inline BenchAccess& bench_access(Communicator& communicator) {
  return dynamic_cast<BenchAccess&>(communicator);
}

}  // namespace refrain::worker
