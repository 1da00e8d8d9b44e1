#pragma once
// The groups of workers of one coordinator: what each is for and how its ranks share the model.
// Plain data; any thread.

#include <cstdint>
#include <vector>

#include "ipc/protocol/group_role.h"

namespace refrain {

// How the ranks of a group share the model: a rank is a place on it.
struct Mesh {
  int32_t tensor_parallel_size = 1;
};

struct Group {
  int32_t id = 0;
  ipc::GroupRole role = ipc::GroupRole::kBoth;
  Mesh mesh;
  int32_t first_worker = 0;  // ranks of the groups before it: its place on a machine that has all

  int32_t num_ranks() const { return mesh.tensor_parallel_size; }
};

}  // namespace refrain
