#pragma once
// A piece of device memory that is copied (Copier::copy_all). A record; device code includes it.

#include <cstddef>

namespace refrain::worker {

struct CopyPiece {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

}  // namespace refrain::worker
