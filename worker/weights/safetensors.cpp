#include "worker/weights/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace refrain::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRead = size_t{1} << 30;  // one pread moves at most 2 GiB

Status read_at(int fd, const std::string& path, uint64_t offset, size_t bytes, void* to) {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, out, std::min(bytes, kMaxRead), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return fail(ErrorCode::kInvalidArgument, "{}: reading failed at byte {}: {}", path, offset,
                  std::strerror(errno));
    if (got == 0)
      return fail(ErrorCode::kInvalidArgument,
                  "{}: the file ends at byte {}; it was cut short while it was read", path, offset);
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path.string();
  file.fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.fd_ || ::fstat(file.fd_.get(), &info) != 0)
    return fail(ErrorCode::kNotFound, "{}: cannot be opened: {}", file.path_, std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kInvalidArgument, "{}: is not a regular file", file.path_);
  const auto size = static_cast<uint64_t>(info.st_size);
  uint64_t header_bytes = 0;
  if (size < sizeof(header_bytes))
    return fail(ErrorCode::kInvalidArgument,
                "{}: has {} bytes; a safetensors file begins with 8 bytes of header length",
                file.path_, size);
  REFRAIN_RETURN_IF_ERROR(
      read_at(file.fd_.get(), file.path_, 0, sizeof(header_bytes), &header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > size - sizeof(header_bytes))
    return fail(
        ErrorCode::kInvalidArgument,
        "{}: header length {} does not fit: at most {} bytes and no more than the file's {}",
        file.path_, header_bytes, kMaxHeaderBytes, size);
  std::vector<char> header(header_bytes);
  REFRAIN_RETURN_IF_ERROR(
      read_at(file.fd_.get(), file.path_, sizeof(header_bytes), header.size(), header.data()));
  file.data_begin_ = sizeof(header_bytes) + header_bytes;
  REFRAIN_ASSIGN_OR_RETURN(file.tensors_,
                           parse_safetensors_header(header, size - file.data_begin_, file.path_));
  return file;
}

Status SafetensorsFile::read(const TensorInfo& tensor, uint64_t offset, size_t bytes,
                             void* to) const {
  return read_at(fd_.get(), path_, data_begin_ + tensor.begin + offset, bytes, to);
}

}  // namespace refrain::worker
