#include "ipc/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/base/unique_handle.h"

namespace refrain::ipc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::microseconds(500);

Status check_name(const std::string& name) {
  if (name.empty() || name.size() > 200 || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos)
    return fail(ErrorCode::kInvalidArgument,
                "shared-memory name \"{}\" must have 1 to 200 characters and no slash", name);
  return {};
}

Result<void*> map(const std::string& name, int fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return fail(ErrorCode::kUnavailable, "shared memory {} of {} bytes cannot be mapped: {}", name,
                bytes, std::strerror(errno));
  return data;
}

// What stands in the way of using the segment; nothing, with `ready` false: not there or not sized
// yet.
Status look_at(const std::string& name, const UniqueFd& fd, size_t bytes, bool& ready) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0)
    return fail(ErrorCode::kInternal, "shared memory {}: {}", name, std::strerror(errno));
  if (info.st_uid != ::geteuid())
    return fail(ErrorCode::kInvalidArgument, "shared memory {} belongs to user {}, not to {}", name,
                info.st_uid, ::geteuid());
  ready = static_cast<size_t>(info.st_size) == bytes;
  if (info.st_size != 0 && !ready)
    return fail(ErrorCode::kInvalidArgument, "shared memory {} has {} bytes where {} were agreed",
                name, info.st_size, bytes);
  return {};
}

}  // namespace

Result<std::unique_ptr<SharedSegment>> SharedSegment::create(const std::string& name,
                                                             size_t bytes) {
  REFRAIN_RETURN_IF_ERROR(check_name(name));
  if (bytes == 0) return fail(ErrorCode::kInvalidArgument, "shared memory {} of 0 bytes", name);
  const std::string path = "/" + name;
  UniqueFd fd(::shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd)
    return fail(ErrorCode::kInvalidArgument, "shared memory {} cannot be created: {}", name,
                std::strerror(errno));
  // Takes the pages now: a full /dev/shm is an error here, not a SIGBUS later.
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) {
    ::shm_unlink(path.c_str());
    return fail(ErrorCode::kUnavailable,
                "shared memory {} of {} bytes does not fit in /dev/shm: {}", name, bytes,
                std::strerror(error));
  }
  auto data = map(name, fd.get(), bytes);
  if (!data) {
    ::shm_unlink(path.c_str());
    return forward_error(std::move(data).error());
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(name, *data, bytes, true));
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::open(const std::string& name, size_t bytes,
                                                           int timeout_ms) {
  REFRAIN_RETURN_IF_ERROR(check_name(name));
  const std::string path = "/" + name;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    UniqueFd fd(::shm_open(path.c_str(), O_RDWR | O_CLOEXEC, 0));
    if (!fd && errno != ENOENT)
      return fail(ErrorCode::kInvalidArgument, "shared memory {} cannot be opened: {}", name,
                  std::strerror(errno));
    bool ready = false;
    if (fd) REFRAIN_RETURN_IF_ERROR(look_at(name, fd, bytes, ready));
    if (ready) {
      void* data = nullptr;
      REFRAIN_ASSIGN_OR_RETURN(data, map(name, fd.get(), bytes));
      return std::unique_ptr<SharedSegment>(new SharedSegment(name, data, bytes, false));
    }
    if (Clock::now() >= deadline)
      return fail(ErrorCode::kDeadline, "shared memory {} was not there within {} ms", name,
                  timeout_ms);
    std::this_thread::sleep_for(kPoll);
  }
}

SharedSegment::~SharedSegment() {
  unlink();
  ::munmap(data_, bytes_);
}

void SharedSegment::unlink() {
  if (!linked_) return;
  linked_ = false;
  ::shm_unlink(("/" + name_).c_str());
}

}  // namespace refrain::ipc
