#pragma once
// The flight recorder of a rank: a ring of records in memory that the supervisor has mapped
// as well, so that it outlives the rank's SIGKILL. One writer, without a system call or a lock;
// any process reads. Without memory behind it, writing does nothing.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "ipc/shm/inherited_memory.h"

namespace refrain::ipc {

// Where a rank was; a step is taken from the queue, given to the device, and answered.
enum class FlightPhase : uint8_t { kLoading, kCapturing, kReady, kTaken, kSubmitted, kDone };
const char* to_string(FlightPhase phase);

struct FlightRecord {
  uint64_t time_ns = 0;  // of the machine's steady clock
  uint64_t epoch = 0;
  uint64_t step = 0;
  FlightPhase phase = FlightPhase::kLoading;
  uint8_t mode = 0;  // ipc::RuntimeMode; it and the key are those of an answered step
  bool key_uniform = false;
  uint8_t forward_mode = 0;  // ipc::ForwardMode of the last run of a step taken or submitted
  int32_t num_tokens = 0;    // unpadded
  int32_t num_reqs = 0;
  int32_t key_tokens = 0;
  int32_t key_reqs = 0;
  uint32_t device_us = 0;
};

class FlightRing {
 public:
  static constexpr size_t kRecords = 256;

  static Result<UniqueFd> create();
  static Result<FlightRing> map(int fd);

  void write(const FlightRecord& record);             // on the writer's one thread
  std::vector<FlightRecord> read(size_t last) const;  // oldest first, without torn ones
  void clear();                                       // while nobody writes

 private:
  // A record is whole when its number is the same before and after it was read.
  struct Slot {
    std::atomic<uint64_t> number{0};  // from 1; 0: being written
    std::array<std::atomic<uint64_t>, sizeof(FlightRecord) / 8> words{};
  };
  struct Shared {
    std::atomic<uint64_t> written{0};
    Slot slots[kRecords];
  };
  using Words = std::array<uint64_t, sizeof(FlightRecord) / 8>;
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(std::has_unique_object_representations_v<FlightRecord>);

  Shared* shared() const { return static_cast<Shared*>(memory_.data()); }
  InheritedMemory memory_;
};

inline void FlightRing::write(const FlightRecord& record) {
  if (memory_.data() == nullptr) return;
  Shared& ring = *shared();
  const uint64_t number = ring.written.load(std::memory_order_relaxed) + 1;
  Slot& slot = ring.slots[number % kRecords];
  slot.number.store(0, std::memory_order_relaxed);
  const auto words = std::bit_cast<Words>(record);
  for (size_t i = 0; i < words.size(); ++i)
    slot.words[i].store(words[i], std::memory_order_release);  // after the 0
  slot.number.store(number, std::memory_order_release);
  ring.written.store(number, std::memory_order_release);
}

}  // namespace refrain::ipc
