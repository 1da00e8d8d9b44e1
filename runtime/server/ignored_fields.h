#pragma once
// Fields of requests that this server does not know: passed over, as OpenAI's clients expect, and
// said once each in the log. Any thread.

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/server/json_fields.h"

namespace refrain {

inline constexpr size_t kMostIgnoredFields = 8;     // named of a request
inline constexpr size_t kLongestIgnoredField = 64;  // bytes of a name that are said

// Names of the body's members that nothing reads.
std::vector<std::string> ignored_fields(const Json& body, bool chat);

class IgnoredFields {
 public:
  // Logs those that it has not logged before. Returns their number.
  int say(const std::vector<std::string>& names);

 private:
  std::mutex mutex_;
  std::set<std::string> said_;
};

}  // namespace refrain
