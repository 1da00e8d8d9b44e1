#include "worker/device/cuda/pinned_pieces.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"

namespace refrain::worker {
namespace {

// The driver locks a piece's pages while launches of other threads wait: half a millisecond.
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kPageBytes = 4096;

class PinnedPieces final : public Buffer {
 public:
  PinnedPieces(std::shared_ptr<CudaContext> context, size_t bytes)
      : context_(std::move(context)), bytes_(bytes), mapped_(std::max<size_t>(bytes, 1)) {
    context_->check(cudaSetDevice(context_->device()), "cudaSetDevice");  // of this thread
    void* const data =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) refuse(std::strerror(errno));
    data_ = static_cast<std::byte*>(data);
    madvise(data_, mapped_, MADV_HUGEPAGE);  // a wish: locked in a third of the time
    // Pages come now, and not while the driver keeps others waiting.
    for (size_t at = 0; at < mapped_; at += kPageBytes) data_[at] = std::byte{0};
    while (pinned_ < mapped_) {
      const size_t piece = std::min(kPieceBytes, mapped_ - pinned_);
      const cudaError_t status = cudaHostRegister(data_ + pinned_, piece, cudaHostRegisterDefault);
      if (status != cudaSuccess) {
        release();
        if (status != cudaErrorMemoryAllocation) context_->check(status, "cudaHostRegister");
        cudaGetLastError();
        refuse(cudaGetErrorString(status));
      }
      pinned_ += piece;
    }
  }
  ~PinnedPieces() override {
    if (!context_->abandoned()) release();
  }
  PinnedPieces(const PinnedPieces&) = delete;
  PinnedPieces& operator=(const PinnedPieces&) = delete;
  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  [[noreturn]] void refuse(const char* why) const {
    throw OutOfMemory(
        fmt::format("the system gave no {} bytes of page-locked memory: {}", bytes_, why), bytes_);
  }
  void release() {
    for (size_t at = 0; at < pinned_; at += kPieceBytes) {
      if (const cudaError_t status = cudaHostUnregister(data_ + at); status != cudaSuccess)
        log::error("cudaHostUnregister of memory of {} bytes: {}", bytes_,
                   cudaGetErrorString(status));
    }
    munmap(data_, mapped_);
  }

  std::shared_ptr<CudaContext> context_;
  size_t bytes_;
  size_t mapped_;
  size_t pinned_ = 0;  // from the beginning, in pieces
  std::byte* data_ = nullptr;
};

}  // namespace

std::unique_ptr<Buffer> make_pinned_pieces(std::shared_ptr<CudaContext> context, size_t bytes) {
  return std::make_unique<PinnedPieces>(std::move(context), bytes);
}

}  // namespace refrain::worker
