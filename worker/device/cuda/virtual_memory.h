#pragma once
// The driver's calls for memory behind addresses, and for giving it to other processes. Any thread.

#include <cuda.h>

#include "worker/device/cuda/driver_function.h"

namespace refrain::worker {

struct VirtualMemory {
  static constexpr unsigned kVersion = 11000;  // of the functions
#define REFRAIN_DRIVER_CALL(name, call) \
  decltype(call)* name = driver_function<decltype(call)>(#call, kVersion)
  REFRAIN_DRIVER_CALL(attribute, cuDeviceGetAttribute);
  REFRAIN_DRIVER_CALL(reserve, cuMemAddressReserve);
  REFRAIN_DRIVER_CALL(free, cuMemAddressFree);
  REFRAIN_DRIVER_CALL(create, cuMemCreate);
  REFRAIN_DRIVER_CALL(release, cuMemRelease);
  REFRAIN_DRIVER_CALL(map, cuMemMap);
  REFRAIN_DRIVER_CALL(unmap, cuMemUnmap);
  REFRAIN_DRIVER_CALL(set_access, cuMemSetAccess);
  REFRAIN_DRIVER_CALL(granularity, cuMemGetAllocationGranularity);
  REFRAIN_DRIVER_CALL(range, cuMemGetAddressRange);
  REFRAIN_DRIVER_CALL(retain, cuMemRetainAllocationHandle);
  REFRAIN_DRIVER_CALL(give, cuMemExportToShareableHandle);
  REFRAIN_DRIVER_CALL(take, cuMemImportFromShareableHandle);
#undef REFRAIN_DRIVER_CALL
};

inline const VirtualMemory& virtual_memory() {
  static const VirtualMemory functions;
  return functions;
}

}  // namespace refrain::worker
