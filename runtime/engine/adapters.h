#pragma once
// The LoRA adapters that a server knows: their names, how far their loading is on the ranks of
// every group, which requests hold them. The engine's executor changes it; any thread may look a
// name up.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/config/model/lora_paths.h"

namespace refrain {

// As a client names it, and as workers find it: one of --lora-modules or a folder of --lora-dir.
struct AdapterSource {
  std::string name;
  std::string module;
  std::string digest;
  std::string root;    // directory, for /v1/models
  bool fixed = false;  // of --lora-modules: without it nothing is served
};

// Those of --lora-modules.
Result<std::vector<AdapterSource>> fixed_adapters(const LoraPaths& paths);

using AdapterDone = std::function<void(Status)>;

class Adapters {
 public:
  // Groups of so many ranks.
  Adapters(std::vector<int32_t> num_ranks, int32_t most)
      : num_ranks_(std::move(num_ranks)), most_(most) {}

  // Any thread. One that is being loaded over HTTP or unloaded is not found.
  std::optional<AdapterId> find(const std::string& name) const;
  std::vector<AdapterSource> list() const;

  // Enters it; `done` (may be null) is called once, when all groups that were asked have it or one
  // has refused it.
  Result<AdapterId> add(AdapterSource source, AdapterDone done);
  // For every adapter that this group was not asked for: all of its ranks are.
  std::vector<ipc::LoadAdapter> load_all(int32_t group);
  // A rank's answer. Set when it was the last one of its group that was missing.
  struct Answered {
    AdapterId id = 0;
    AdapterSource source;
    Status status;      // of the first rank that refused it
    AdapterDone done;   // set: it is time to call it
    bool gone = false;  // refused before anyone was served by it: it is forgotten
  };
  std::optional<Answered> answer(int32_t group, int32_t rank, const ipc::AdapterLoaded& answer);
  // The group is lost. Who waited for its answer alone, and whether the other groups have it.
  struct Ended {
    AdapterDone done;
    bool loaded = false;
  };
  std::vector<Ended> lose_group(int32_t group);

  // A request that names it begins; false: it is not there any more.
  bool hold(AdapterId id);
  void release(AdapterId id);
  // No request finds it from here on. `done` (may be null) is called when take_unheld() gave it.
  Status unload(const std::string& name, AdapterDone done);
  // Those that go, that no request holds and that are `unused` in the schedulers; they are gone
  // from here on.
  struct Gone {
    AdapterId id = 0;
    AdapterDone done;
  };
  bool any_going() const;
  std::vector<Gone> take_unheld(const std::function<bool(AdapterId)>& unused);

 private:
  struct OfGroup {
    bool asked = false;   // its ranks were
    int32_t answers = 0;  // of those ranks
    Status refusal;       // of the first rank that could not load it
  };
  struct Entry {
    AdapterSource source;
    std::vector<OfGroup> groups;
    AdapterDone loaded;
    bool going = false;
    AdapterDone unloaded;
    int64_t requests = 0;
  };
  bool asked(const Entry& entry) const;     // some group
  bool all_have(const Entry& entry) const;  // of those that were asked

  const std::vector<int32_t> num_ranks_;  // by group
  const int32_t most_;
  mutable std::mutex mutex_;
  std::map<AdapterId, Entry> entries_;
  AdapterId next_id_ = 1;
};

}  // namespace refrain
