#pragma once
// One server endpoint for several groups of workers: each gets an endpoint of its own, on which it
// hears the peers whose Hello named it. Lives on the engine's executor, as the endpoint does.

#include <memory>
#include <vector>

#include "ipc/transport/endpoint.h"

namespace refrain {

// As many endpoints as groups; the given one closes with the last of them. A Hello of a group that
// there is not goes to the first one, whose door refuses it.
std::vector<std::unique_ptr<ipc::Endpoint>> split_endpoint(std::unique_ptr<ipc::Endpoint> endpoint,
                                                           int32_t num_groups);

}  // namespace refrain
