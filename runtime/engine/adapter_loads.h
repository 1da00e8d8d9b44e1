#pragma once
// Loads LoRA adapters into the ranks of all groups and takes them out: asks ranks, takes their
// answers, and lets an adapter go when its last request has ended. Owned by the engine, on its
// executor, but for what adapters() says of other threads.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/adapters.h"
#include "runtime/engine/group_services.h"

namespace refrain {

class AdapterLoads {
 public:
  struct Hooks {
    std::function<void(AdapterId, const Error&)> drop;  // ends all requests of the adapter
    std::function<void(int32_t group)> served;          // requests of one more may run there
  };
  // `groups` outlives it.
  AdapterLoads(const EngineConfig& config, GroupServices& groups, Hooks hooks);

  Adapters& adapters() { return adapters_; }
  const Adapters& adapters() const { return adapters_; }

  void load(AdapterSource source, const AdapterDone& done);
  void unload(const std::string& name, const AdapterDone& done);
  // The group's ranks are asked for all adapters that they lack.
  void ask(int32_t index);
  void answered(int32_t index, int32_t rank, const ipc::AdapterLoaded& answer);
  void lost(int32_t index, const Error& error);
  // Requests may have ended: adapters that wait for that go.
  void settle() {
    if (unloading_) finish_unloads();
  }

 private:
  void refused(int32_t index, Adapters::Answered answered);
  void finish_unloads();

  GroupServices& groups_;
  const Hooks hooks_;
  Adapters adapters_;
  bool unloading_ = false;  // an adapter goes when its last request has ended
};

}  // namespace refrain
