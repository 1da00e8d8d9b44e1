#pragma once
// What a worker's log says of its memory and its state groups when it has started.

#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/device/device.h"

namespace refrain::worker {

// "weights 16.1 GB, arena 0.1 GB, …; 5.2 GB of 150.1 GB free"
std::string memory_text(const ipc::Ready& ready, const MemoryAccount& memory);
// "640 KV blocks", or "640 and 90 KV blocks (full_attention, sliding_attention)".
std::string text_of(const std::vector<ipc::StateGroup>& groups);

}  // namespace refrain::worker
