#pragma once
// `refrain bench serve --base-url URL`: measures a server that runs, of any kind (runtime/load).

#include <string>
#include <vector>

namespace refrain {

// Are these the arguments of it? `bench serve` without a URL measures an engine of its own.
bool is_load(const std::vector<std::string>& arguments);
int load_command(const std::vector<std::string>& arguments);

}  // namespace refrain
