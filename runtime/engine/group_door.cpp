#include "runtime/engine/group_door.h"

#include <fmt/format.h>

#include <utility>

namespace refrain {

bool GroupDoor::opens(const ipc::PeerId& from, const ipc::Hello& hello,
                      const RankProcesses& processes) {
  if (const int32_t known = members_.rank_of(from); known >= 0) {
    // It asked again before the answer came.
    if (!members_.find(known)->spoke) {
      fan_out_.beat_or_tell(known);
      return false;
    }
    on_fault_({"frames",
               {known},
               fmt::format("{} lost its connection and begins anew", members_.name_of(known))});
  }
  if (auto reason = members_.refusal_of(hello)) {
    fan_out_.refuse(from, std::move(*reason));
    return false;
  }
  if (Member* holder = members_.find(hello.rank)) {
    const std::string name = members_.name_of(hello.rank);
    if (!processes.ended(hello.rank) && fan_out_.beat(*holder)) {
      fan_out_.refuse(
          from, fmt::format("{} is already there; start this worker with another --rank", name));
      return false;
    }
    on_fault_({"process", {hello.rank}, fmt::format("{} is gone", name)});
  }
  if (hello.last_epoch >= members_.epoch() && !members_.empty())
    on_fault_({"start",
               {},
               fmt::format("a worker comes from epoch {}, later than this group's {}",
                           hello.last_epoch, members_.epoch())});
  members_.outgrow(hello.last_epoch);
  return true;
}

void GroupDoor::join(const ipc::PeerId& from, const ipc::Hello& hello, bool check_weights) {
  members_.join(from, hello).welcome = {
      options_.worker,        fmt::format("{}-{}", options_.token_prefix, members_.epoch()),
      options_.process.pid,   options_.process.start,
      options_.process.realm, hello.held_group,
      check_weights};
}

}  // namespace refrain
