#include "runtime/base/host_name.h"

#include <unistd.h>

#include "runtime/base/check.h"

namespace refrain {

std::string host_name() {
  std::string name(256, '\0');
  REFRAIN_CHECK(gethostname(name.data(), name.size() - 1) == 0, "this host has no name");
  name.resize(name.find('\0'));
  return name;
}

}  // namespace refrain
