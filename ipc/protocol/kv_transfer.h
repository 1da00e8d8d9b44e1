#pragma once
// KV blocks that move between groups of workers: the ranks of the group that reads pull them from
// the ranks of the group that has them. Where they lie travels through the coordinator. Part of
// messages.h.

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/protocol/rank_address.h"
#include "runtime/base/ids.h"

namespace refrain::ipc {

// A part of what a layer's block holds (keys, values, a latent): units of equal size, one after the
// other, of which a rank has a range. Units are numbered over all ranks of a group.
struct KvPart {
  std::string name;
  int64_t first_unit = 0, units = 0;
  int64_t unit_bytes = 0;  // of a unit in a block

  bool operator==(const KvPart&) const = default;
};

// A paged state group as a rank holds it: in each layer's region its blocks lie one after the
// other, in each block the parts.
struct KvStates {
  int32_t num_layers = 0;
  int64_t num_blocks = 0;
  std::vector<KvPart> parts;

  int64_t block_bytes() const {
    int64_t bytes = 0;
    for (const KvPart& part : parts) bytes += part.units * part.unit_bytes;
    return bytes;
  }
  bool operator==(const KvStates&) const = default;
};

// Device memory that processes of the same machine can map: by a descriptor of the process that has
// it, which stays open, or by words.
struct KvPiece {
  uint64_t address = 0, bytes = 0;  // in that process
  int32_t descriptor = -1;
  std::vector<uint64_t> words;

  bool operator==(const KvPiece&) const = default;
};

// Memory that UCX has registered, and its key for peers (ucp_rkey_pack).
struct KvUcxMemory {
  uint64_t address = 0, bytes = 0;  // in that process
  std::vector<uint8_t> key;

  bool operator==(const KvUcxMemory&) const = default;
};

// What UCX needs to read a rank's memory (ucp_worker_get_address).
struct KvUcx {
  std::vector<uint8_t> worker;      // empty: it does not use UCX
  std::vector<uint64_t> regions;    // as KvExport::regions
  std::vector<KvUcxMemory> memory;  // that holds them, in the order of the addresses

  bool operator==(const KvUcx&) const = default;
};

// Where a rank's blocks can be read (WorkerConfig::kv_transfer). It says so when it is ready.
struct KvExport {
  std::string realm;  // the process whose memory they lie in (runtime/base/process_identity.h)
  int64_t pid = 0;
  uint64_t process_start = 0;
  std::vector<uint64_t> regions;  // their addresses in that process, by state group and layer;
                                  // none: another process cannot read them
  std::vector<KvPiece> pieces;    // that hold the regions, in the order of their addresses; none:
                                  // they are not in device memory that can be mapped
  RankAddress tcp;                // where it answers reads to peers whose keys it was told
  KvUcx ucx;
  bool layer_flags = false;      // behind the regions is one more: of each of them, in order, the
                                 // last step that has written it (kernels/core/layer_flag.h)
  std::vector<KvStates> states;  // by state group
};

// The ranks of another group, in order. None: that group is gone.
struct KvPeers {
  int32_t group = 0;
  Epoch epoch = 0;  // of that group
  std::vector<KvExport> ranks;
};

// Blocks of a state group: block `from[i]` of the other group goes to the reader's block `to[i]`.
struct KvBlocks {
  std::vector<BlockId> from, to;

  bool operator==(const KvBlocks&) const = default;
};

// Every rank of the group that reads pulls its share of the blocks from the ranks of KvPeers that
// have it, beside its steps, and tells how far it is with Pulled. Nobody else uses the blocks that
// it writes until it has said that it ended.
struct PullBlocks {
  TransferId id = 0;
  int32_t group = 0;             // that has them
  Epoch epoch = 0;               // of that group
  std::vector<KvBlocks> blocks;  // by state group
  StepId step = 0;               // it writes them: a layer is read when its flag says so; 0: they
                                 // are all there
};

// The rank ends the transfer, and says so when no more of it can be written.
struct CancelPull {
  TransferId id = 0;
};

struct Pulled {
  TransferId id = 0;
  int64_t bytes = 0;        // that this rank has so far
  bool ended = false;       // nothing more is written
  std::string error = {};   // ended: why not all is here; empty: it is
  int64_t early_bytes = 0;  // of `bytes`: before PullBlocks::step had written its last layer
};

}  // namespace refrain::ipc
