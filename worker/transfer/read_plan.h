#pragma once
// Which bytes a rank reads from which ranks of another group: its own units of each part, wherever
// they are there, whatever the two groups' numbers of ranks. Knows layouts by parts and units
// alone. Pure.

#include <vector>

#include "runtime/base/result.h"
#include "worker/kv/kv_memory.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

// By rank of the other group. Neighbours become one read. Of units that several ranks have, rank
// `own_rank` (modulo their number) is asked first, so that readers spread over them. Errors say in
// what the groups' states differ, or which block there is not.
Result<std::vector<std::vector<Read>>> plan_reads(const KvMemory& own, int own_rank,
                                                  const std::vector<ipc::KvExport>& from,
                                                  const std::vector<ipc::KvBlocks>& blocks);

// The same bytes in reads of at most so many.
std::vector<Read> cut_reads(const std::vector<Read>& reads, size_t most_bytes);

}  // namespace refrain::worker
