#pragma once
// Runs a function in several processes at once, one a rank, and collects what each says.

#include <functional>
#include <string>
#include <vector>

namespace refrain::worker {

// Forks `size` processes; each runs body(rank) and exits. Element r is what body(r) returned, or
// "exception: …", or "killed by signal N". A rank that is not done after 240 s is killed.
std::vector<std::string> run_ranks(int size, const std::function<std::string(int rank)>& body);

std::string fresh_token();                                       // of a group no other test uses
std::vector<std::string> segments_of(const std::string& token);  // names left in /dev/shm

}  // namespace refrain::worker
