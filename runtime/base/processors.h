#pragma once
// How many processors this process can keep at work. Any thread.

#include <cstdint>
#include <filesystem>
#include <string>

namespace refrain {

// Those it may run on, and no more than its control group pays for (docker --cpus, a Kubernetes
// limit): threads beyond that would be held back together. At least 1.
int32_t usable_processors();

// What a quota of processor time pays for, under `root` (/sys/fs/cgroup), where `groups` is the
// text of /proc/self/cgroup: both versions of control groups, those of the process and, as a
// container sees its own, of the root. 0: there is no quota.
int32_t paid_processors(const std::filesystem::path& root, const std::string& groups);

}  // namespace refrain
