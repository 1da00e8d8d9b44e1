#include "ipc/shm/inherited_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace refrain::ipc {

Result<UniqueFd> InheritedMemory::create(size_t bytes) {
  UniqueFd fd(::memfd_create("refrain", MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return fail(ErrorCode::kUnavailable, "no {} bytes of memory to share with a child: {}", bytes,
                std::strerror(errno));
  return fd;
}

Result<InheritedMemory> InheritedMemory::map(int fd, size_t bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) != bytes)
    return fail(ErrorCode::kInvalidArgument, "descriptor {} is no shared memory of {} bytes", fd,
                bytes);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED)
    return fail(ErrorCode::kUnavailable, "{} bytes of shared memory cannot be mapped: {}", bytes,
                std::strerror(errno));
  return InheritedMemory(data, bytes);
}

InheritedMemory::~InheritedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace refrain::ipc
