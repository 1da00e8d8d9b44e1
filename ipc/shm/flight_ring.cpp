#include "ipc/shm/flight_ring.h"

#include <algorithm>

namespace refrain::ipc {

const char* to_string(FlightPhase phase) {
  switch (phase) {
    case FlightPhase::kLoading:
      return "loading";
    case FlightPhase::kCapturing:
      return "capturing";
    case FlightPhase::kReady:
      return "ready";
    case FlightPhase::kTaken:
      return "taken";
    case FlightPhase::kSubmitted:
      return "submitted";
    case FlightPhase::kDone:
      return "done";
  }
  return "unknown";  // its writer damaged the ring
}

Result<UniqueFd> FlightRing::create() { return InheritedMemory::create(sizeof(Shared)); }

Result<FlightRing> FlightRing::map(int fd) {
  FlightRing ring;
  REFRAIN_ASSIGN_OR_RETURN(ring.memory_, InheritedMemory::map(fd, sizeof(Shared)));
  return ring;
}

std::vector<FlightRecord> FlightRing::read(size_t last) const {
  std::vector<FlightRecord> records;
  if (memory_.data() == nullptr) return records;
  const Shared& ring = *shared();
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  const uint64_t count = std::min<uint64_t>({written, last, kRecords - 1});
  for (uint64_t number = written - count + 1; number <= written; ++number) {
    const Slot& slot = ring.slots[number % kRecords];
    if (slot.number.load(std::memory_order_acquire) != number) continue;
    Words words;
    for (size_t i = 0; i < words.size(); ++i)
      words[i] = slot.words[i].load(std::memory_order_acquire);  // before the number again
    if (slot.number.load(std::memory_order_relaxed) == number)
      records.push_back(std::bit_cast<FlightRecord>(words));
  }
  return records;
}

void FlightRing::clear() {
  if (memory_.data() == nullptr) return;
  shared()->written.store(0, std::memory_order_relaxed);
  for (Slot& slot : shared()->slots) slot.number.store(0, std::memory_order_relaxed);
}

}  // namespace refrain::ipc
