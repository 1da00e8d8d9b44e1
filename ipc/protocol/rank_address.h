#pragma once
// Where the ranks of a group find each other: it travels through their coordinator, never through
// files. Part of messages.h.

#include <string>
#include <vector>

namespace refrain::ipc {

// Each rank of several says it once in an epoch, before its device joins the group, and is told of
// all when the last one has spoken. An adopted group has its connections.
struct RankAddress {
  std::string memory;   // ranks that name the same one share it; empty: shared with nobody
  std::string address;  // tcp://host:port; empty: none
  std::string key;      // CURVE public key of who listens there

  bool operator==(const RankAddress&) const = default;
};

struct Peers {
  std::vector<RankAddress> ranks;  // by rank
};

}  // namespace refrain::ipc
