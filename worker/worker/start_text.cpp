#include "worker/worker/start_text.h"

#include <fmt/format.h>

namespace refrain::worker {

std::string memory_text(const ipc::Ready& ready, const MemoryAccount& memory) {
  const auto gigabytes = [](auto bytes) { return static_cast<double>(bytes) * 1e-9; };
  std::string text;
  for (size_t i = 0; i < ready.memory_tags.size(); ++i) {
    text += fmt::format("{}{} {:.3f} GB", text.empty() ? "" : ", ", ready.memory_tags[i],
                        gigabytes(ready.memory_bytes[i]));
  }
  return fmt::format("{}; {:.3f} GB of {:.3f} GB free", text, gigabytes(memory.free),
                     gigabytes(memory.total));
}

std::string text_of(const std::vector<ipc::StateGroup>& groups) {
  std::string blocks, names;
  int paged = 0;
  for (const ipc::StateGroup& group : groups) {
    if (group.kind != ipc::StateKind::kPaged) continue;
    blocks += fmt::format("{}{}", paged == 0 ? "" : " and ", group.num_blocks);
    names += (paged == 0 ? "" : ", ") + group.name;
    ++paged;
  }
  return blocks + " KV blocks" + (paged > 1 ? " (" + names + ")" : "");
}

}  // namespace refrain::worker
