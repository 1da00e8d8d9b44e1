#pragma once
// A named POSIX shared-memory segment of a worker group. The creator unlinks the name as soon as
// every rank has mapped it, so that nothing is left in /dev/shm whatever ends the processes.

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/base/result.h"

namespace refrain::ipc {

class SharedSegment {
 public:
  // Exclusive creation, mode 0600, zero-filled. `name` without a slash; at most 200 characters.
  static Result<std::unique_ptr<SharedSegment>> create(const std::string& name, size_t bytes);
  // Waits until the creator has sized it; kDeadline after timeout_ms.
  static Result<std::unique_ptr<SharedSegment>> open(const std::string& name, size_t bytes,
                                                     int timeout_ms);
  ~SharedSegment();  // unmaps; the creator unlinks if still linked
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void unlink();  // the name goes, the mapping stays

 private:
  SharedSegment(std::string name, void* data, size_t bytes, bool owner)
      : name_(std::move(name)), data_(data), bytes_(bytes), linked_(owner) {}
  std::string name_;
  void* data_;
  size_t bytes_;
  bool linked_;
};

}  // namespace refrain::ipc
