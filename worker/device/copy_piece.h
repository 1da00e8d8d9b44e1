#pragma once
// Pieces of memory that are copied many at a time. Records; device code includes them.

#include <cstddef>

namespace refrain::worker {

struct CopyPiece {  // of device memory (Copier::copy_all)
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// Rows without a gap, from pinned memory into one of several places (Stream::copy_rows).
struct CopyRows {
  std::byte* to = nullptr;  // the first row in place 0
  size_t step = 0;          // bytes from there to the next place
  size_t stride = 0;        // … to the next row
  const std::byte* from = nullptr;
  size_t bytes = 0;  // of a row
  size_t rows = 0;
};

}  // namespace refrain::worker
