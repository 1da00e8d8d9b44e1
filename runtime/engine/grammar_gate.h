#pragma once
// Requests whose grammar the workers compile: they are scheduled when every rank has done so, since
// a step that samples by a grammar waits for it. Pure; owned by the engine, on its executor.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/sequence.h"

namespace refrain {

class GrammarGate {
 public:
  void add(std::unique_ptr<Sequence> sequence);  // one with a grammar
  bool empty() const { return held_.empty(); }
  size_t size() const { return held_.size(); }
  const Sequence* find(RequestId id) const;  // null: not held
  // What the ranks have not been sent yet.
  std::vector<ipc::Grammar> take_unsent();
  // A rank has compiled it. The request when all `num_ranks` have; null: not yet, or it has left.
  std::unique_ptr<Sequence> compiled(RequestId id, int32_t num_ranks);
  void remove(RequestId id);
  // In the order in which they came.
  std::vector<std::unique_ptr<Sequence>> release_all();

 private:
  struct Held {
    std::unique_ptr<Sequence> sequence;
    bool sent = false;
    int32_t compiled = 0;  // ranks
  };
  std::vector<Held> held_;
};

}  // namespace refrain
