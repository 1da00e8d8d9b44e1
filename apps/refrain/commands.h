#pragma once
// The subcommands of refrain: each parses its own arguments and returns the exit code.

#include <string>
#include <vector>

namespace refrain {

int serve_command(const std::vector<std::string>& arguments);
int generate_command(const std::vector<std::string>& arguments);
int bench_command(const std::vector<std::string>& arguments);
int plan_command(const std::vector<std::string>& arguments);
int keygen_command(const std::vector<std::string>& arguments);

}  // namespace refrain
