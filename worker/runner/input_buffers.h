#pragma once
// Device memory that steps read and write, with addresses that never change: the step block, the
// slots' state, the batch's inputs, the sampled outputs; and beside them pinned memory for the two
// steps that may be in flight. Device thread; as long as the runner.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/device/device.h"
#include "worker/graph/op_context.h"

namespace refrain::worker {

struct InputSizes {
  int32_t max_tokens = 0;  // T
  int32_t max_reqs = 0;    // R, and S slots
  int32_t max_blocks = 0;  // of one request
  int32_t block_size = 16;
  int32_t vocab_size = 0;
  int32_t max_block_updates() const { return 4 * max_reqs + max_tokens / block_size + 64; }
  size_t mask_words() const { return (static_cast<size_t>(vocab_size) + 31) / 32; }
};

class InputBuffers {
 public:
  static constexpr int kInFlight = 2;

  // Throws OutOfMemory. The state of all slots is cleared on the stream.
  InputBuffers(Device& device, Stream& stream, const InputSizes& sizes);

  const StepBuffers& device() const { return buffers_; }
  const InputSizes& sizes() const { return sizes_; }

  // Pinned memory of one step in flight.
  struct Pinned {
    uint8_t* block = nullptr;          // StepLayout
    int32_t* block_table = nullptr;    // [R, max_blocks] updates that the block has no room for
    int32_t* bias_token = nullptr;     // [R, kMaxLogitBias]
    float* bias_value = nullptr;       // [R, kMaxLogitBias]
    uint32_t* allowed_mask = nullptr;  // [R, mask_words]
    kernels::SampleOutputs outputs;    // copied back after the step
  };
  const Pinned& pinned(int flight) const { return pinned_[static_cast<size_t>(flight)]; }

  // Stream-ordered copies. `reqs` rows; the alternatives only when `with_top`.
  void copy_block(Stream& stream, int flight) const;
  void copy_outputs(Stream& stream, int flight, int32_t reqs, bool with_logprobs,
                    bool with_top) const;

 private:
  InputSizes sizes_;
  std::unique_ptr<Buffer> device_memory_;
  std::array<std::unique_ptr<Buffer>, kInFlight> pinned_memory_;
  StepBuffers buffers_;
  std::array<Pinned, kInFlight> pinned_;
};

// Fills device memory with one byte by copies from pinned memory, stream-ordered.
class Filler {
 public:
  Filler(Device& device, uint8_t byte);
  void fill(Stream& stream, void* to, size_t bytes) const;

 private:
  std::unique_ptr<Buffer> source_;
};

}  // namespace refrain::worker
