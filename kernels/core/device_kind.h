#pragma once
// The kinds of devices that there are kernels for.

#include <cstdint>

namespace refrain {

enum class DeviceKind : uint8_t { kHost, kCuda };

}  // namespace refrain
