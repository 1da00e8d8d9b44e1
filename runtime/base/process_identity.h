#pragma once
// Which process a number means. A pid counts within one pid namespace of one boot and is
// used again after its process's end; a host's name says none of that, and containers share names.
// Any thread.

#include <cstdint>
#include <optional>
#include <string>

namespace refrain {

struct ProcessIdentity {
  std::string realm;   // boot id and pid namespace; empty: not known, then nobody can be watched
  int64_t pid = 0;     // in that realm
  uint64_t start = 0;  // clock ticks since boot; no two processes have pid and start in common

  bool operator==(const ProcessIdentity&) const = default;
  // Whether the pid names the same process here and there, so that it can be watched by it.
  bool same_realm(const ProcessIdentity& other) const {
    return !realm.empty() && realm == other.realm;
  }
};

// Of this process; without a realm where /proc does not tell.
ProcessIdentity own_process();
// When the process that now has this pid began; nothing: there is none, or /proc does not tell.
std::optional<uint64_t> process_start(int64_t pid);

}  // namespace refrain
