#pragma once
// The two digests of a captured key (CG-22). `digest` is what all ranks of a group must have in
// common: mode and key; every op, its operands by name and its attributes, but those that follow
// from the rank; the graphs' exchanges. `launch_digest` is this rank's own: its Program's text,
// with all shapes and attributes; the places of its values in the arena; what its graphs launch
// (Graph::launch_digest). Neither has an address or a weight's content, so both are the same
// whenever this rank captures the same. Device thread, during the captures.

#include <map>

#include "ipc/protocol/messages.h"
#include "worker/graph/executable.h"
#include "worker/graph/lowering.h"

namespace refrain::worker {

class CaptureDigests {
 public:
  // Sets the two; mode and key of the entry are there.
  void set(const Lowering& lowering, const std::vector<Piece>& pieces, ipc::ManifestEntry& entry);

 private:
  struct OfProgram {
    uint64_t common = 0, own = 0;
  };
  std::map<const Lowering*, OfProgram> programs_;  // a lowering serves many keys
};

}  // namespace refrain::worker
