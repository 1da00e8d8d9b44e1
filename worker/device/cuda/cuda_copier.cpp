#include "worker/device/cuda/cuda_copier.h"

#include <algorithm>
#include <utility>

#include "worker/device/cuda/copy_pieces.h"
#include "worker/device/cuda/shared_memory.h"

namespace refrain::worker {

namespace {

constexpr size_t kMostPieces = 32768;              // in the list
constexpr size_t kEngineBytes = size_t{16} << 20;  // from here on the copy engine takes a piece

bool is_wide(const CopyPiece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.to) | reinterpret_cast<uintptr_t>(piece.from) |
          piece.bytes) %
             16 ==
         0;
}

class CudaCopier final : public Copier {
 public:
  explicit CudaCopier(std::shared_ptr<CudaContext> context)
      : context_(std::move(context)),
        list_(make_pinned_buffer(context_, kMostPieces * sizeof(CopyPiece))),
        device_(context_->device()) {
    context_->check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                    "a stream for copies");
  }
  ~CudaCopier() override { cudaStreamDestroy(stream_); }
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;

  bool is_host_memory() const override { return false; }
  void copy(void* to, const void* from, size_t bytes) override {
    context_->check(cudaSetDevice(device_), "cudaSetDevice");
    context_->check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_),
                    "a copy of blocks");
  }
  void copy_all(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) {
      if (piece.bytes >= kEngineBytes || !is_wide(piece)) {
        copy(piece.to, piece.from, piece.bytes);
        continue;
      }
      for (size_t at = 0; at < piece.bytes; at += kCopyPieceBytes) {
        if (listed_ == kMostPieces) finish();  // nobody reads the list any more
        list()[listed_++] = {static_cast<std::byte*>(piece.to) + at,
                             static_cast<const std::byte*>(piece.from) + at,
                             std::min(kCopyPieceBytes, piece.bytes - at)};
      }
    }
    launch();
  }
  void finish() override {
    launch();
    context_->check(cudaSetDevice(device_), "cudaSetDevice");
    context_->check(cudaStreamSynchronize(stream_), "a copy of blocks");
    listed_ = launched_ = 0;
  }
  Result<std::unique_ptr<MappedMemory>> map(std::span<const SharedPiece> pieces) override {
    context_->check(cudaSetDevice(device_), "cudaSetDevice");
    return map_memory(device_, pieces);
  }

 private:
  CopyPiece* list() const { return static_cast<CopyPiece*>(list_->data()); }
  void launch() {
    if (launched_ == listed_) return;
    context_->check(cudaSetDevice(device_), "cudaSetDevice");
    context_->check(
        launch_copy_pieces(stream_, list() + launched_, static_cast<int>(listed_ - launched_)),
        "a copy of small pieces of blocks");
    launched_ = listed_;
  }

  std::shared_ptr<CudaContext> context_;
  std::unique_ptr<Buffer> list_;  // of CopyPiece
  size_t listed_ = 0, launched_ = 0;
  int device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Copier> make_cuda_copier(std::shared_ptr<CudaContext> context) {
  return std::make_unique<CudaCopier>(std::move(context));
}

}  // namespace refrain::worker
