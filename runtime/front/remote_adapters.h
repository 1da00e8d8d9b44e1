#pragma once
// The LoRA adapters that clients know, as the front keeps them: a coordinator that comes anew is
// told to load them, before requests that name them. The front's executor changes it; any thread
// may look a name up.

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/adapters.h"

namespace refrain::front {

class RemoteAdapters {
 public:
  struct Hooks {
    std::function<void(AdapterId, const AdapterSource&)> load;  // the coordinator is to load it
    std::function<void(AdapterId, const std::string& name)> unload;
    std::function<void(AdapterId)> loaded;              // requests that wait for it may go
    std::function<void(AdapterId, const Error&)> drop;  // requests that name it end
  };
  RemoteAdapters(std::vector<AdapterSource> fixed, size_t most, Hooks hooks);

  // Any thread. One that is being loaded for the first time or unloaded is not found.
  std::optional<AdapterId> find(const std::string& name) const;
  std::vector<AdapterSource> list() const;

  void load(AdapterSource source, AdapterDone done);
  void unload(const std::string& name, AdapterDone done);
  bool hold(AdapterId id);  // by a request; false: it is not there any more
  void release(AdapterId id);
  bool usable(AdapterId id) const;  // the coordinator has it
  std::string name_of(AdapterId id) const;

  // Of the coordinator's answers.
  void load_answered(AdapterId id, const Status& status);
  void unload_answered(AdapterId id, const Status& status);
  void ready();  // it serves: what it lacks is loaded. Asked again and again
  void lost();   // it is gone

 private:
  struct Entry {
    AdapterSource source;
    bool has = false;    // the coordinator of now
    bool asked = false;  // to load it
    bool going = false;
    bool told_to_unload = false;
    int64_t requests = 0;
    AdapterDone loaded;  // set: nobody was served by it yet
    AdapterDone unloaded;
  };
  void unload_if_unheld(AdapterId id, Entry& entry);
  void erase(AdapterId id);

  const size_t most_;
  const Hooks hooks_;
  mutable std::mutex mutex_;  // of what other threads read: the map, names, going and loaded
  std::map<AdapterId, Entry> entries_;
  std::vector<std::string> fixed_gone_;  // unloaded, and there with each new coordinator
  bool there_ = false;                   // a coordinator
  AdapterId next_id_ = 1;
};

}  // namespace refrain::front
