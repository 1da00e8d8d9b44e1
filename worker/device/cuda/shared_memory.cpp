#include "worker/device/cuda/shared_memory.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "worker/device/cuda/virtual_memory.h"

namespace refrain::worker {

namespace {

constexpr size_t kWords = sizeof(cudaIpcMemHandle_t) / sizeof(uint64_t);

Status done(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return {};
  return fail(ErrorCode::kUnavailable, "{}: error {} of the driver", call,
              static_cast<int>(status));
}

// The piece that holds `at`; none of its kind can be given out: an error.
Result<SharedPiece> piece_at(CUdeviceptr at) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  REFRAIN_RETURN_IF_ERROR(done(virtual_memory().range(&base, &bytes, at), "cuMemGetAddressRange"));
  SharedPiece piece{base, bytes, UniqueFd(), {}};
  CUmemGenericAllocationHandle handle{};
  if (virtual_memory().retain(&handle, reinterpret_cast<void*>(base)) == CUDA_SUCCESS) {
    int descriptor = -1;
    const CUresult given =
        virtual_memory().give(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    virtual_memory().release(handle);
    REFRAIN_RETURN_IF_ERROR(done(given, "cuMemExportToShareableHandle"));
    piece.descriptor.reset(descriptor);
    return piece;
  }
  cudaIpcMemHandle_t words;
  if (const cudaError_t status = cudaIpcGetMemHandle(&words, reinterpret_cast<void*>(base));
      status != cudaSuccess) {
    cudaGetLastError();
    return fail(ErrorCode::kUnavailable, "cudaIpcGetMemHandle: {}", cudaGetErrorString(status));
  }
  piece.words.resize(kWords);
  std::memcpy(piece.words.data(), &words, sizeof(words));
  return piece;
}

// Pieces with descriptors, one behind the other.
class MappedPieces final : public MappedMemory {
 public:
  explicit MappedPieces(size_t bytes) : bytes_(bytes) {}
  ~MappedPieces() override {
    if (mapped_ > 0) virtual_memory().unmap(address_, mapped_);
    if (address_ != 0) virtual_memory().free(address_, bytes_);
  }
  MappedPieces(const MappedPieces&) = delete;
  MappedPieces& operator=(const MappedPieces&) = delete;

  std::byte* data() const override { return reinterpret_cast<std::byte*>(address_); }

  Status map(int device, std::span<const SharedPiece> pieces) {
    REFRAIN_RETURN_IF_ERROR(
        done(virtual_memory().reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve"));
    for (const SharedPiece& piece : pieces) {
      CUmemGenericAllocationHandle handle{};
      void* descriptor = reinterpret_cast<void*>(
          static_cast<intptr_t>(piece.descriptor.get()));  // NOLINT(performance-no-int-to-ptr)
      REFRAIN_RETURN_IF_ERROR(
          done(virtual_memory().take(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "cuMemImportFromShareableHandle"));
      const CUresult status = virtual_memory().map(address_ + mapped_, piece.bytes, 0, handle, 0);
      virtual_memory().release(handle);  // the mapping keeps the memory
      REFRAIN_RETURN_IF_ERROR(done(status, "cuMemMap"));
      mapped_ += piece.bytes;
    }
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return done(virtual_memory().set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
  }

 private:
  size_t bytes_, mapped_ = 0;
  CUdeviceptr address_ = 0;
};

class MappedWords final : public MappedMemory {
 public:
  explicit MappedWords(void* data) : data_(data) {}
  ~MappedWords() override { cudaIpcCloseMemHandle(data_); }
  MappedWords(const MappedWords&) = delete;
  MappedWords& operator=(const MappedWords&) = delete;

  std::byte* data() const override { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
};

Result<std::unique_ptr<MappedMemory>> map_words(const SharedPiece& piece) {
  if (piece.words.size() != kWords)
    return fail(ErrorCode::kUnavailable, "a piece of memory has neither descriptor nor words");
  cudaIpcMemHandle_t words;
  std::memcpy(&words, piece.words.data(), sizeof(words));
  void* data = nullptr;
  if (const cudaError_t status = cudaIpcOpenMemHandle(&data, words, cudaIpcMemLazyEnablePeerAccess);
      status != cudaSuccess) {
    cudaGetLastError();
    return fail(ErrorCode::kUnavailable, "cudaIpcOpenMemHandle: {}", cudaGetErrorString(status));
  }
  return std::make_unique<MappedWords>(data);
}

}  // namespace

std::vector<SharedPiece> share_memory(const void* begin, size_t bytes) {
  std::vector<SharedPiece> pieces;
  const auto first = reinterpret_cast<CUdeviceptr>(begin);
  for (CUdeviceptr at = first; at < first + bytes;) {
    Result<SharedPiece> piece = piece_at(at);
    if (!piece) {
      log::info("memory of this GPU is not given to other processes: {}", piece.error().message);
      return {};
    }
    at = piece->address + piece->bytes;
    pieces.push_back(std::move(*piece));
  }
  return pieces;
}

Result<std::unique_ptr<MappedMemory>> map_memory(int device, std::span<const SharedPiece> pieces) {
  if (pieces.size() == 1 && !pieces.front().descriptor) return map_words(pieces.front());
  const uint64_t bytes = pieces.back().address + pieces.back().bytes - pieces.front().address;
  auto mapped = std::make_unique<MappedPieces>(bytes);
  REFRAIN_RETURN_IF_ERROR(mapped->map(device, pieces));
  return mapped;
}

}  // namespace refrain::worker
