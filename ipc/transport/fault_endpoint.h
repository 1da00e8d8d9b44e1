#pragma once
// An endpoint that mistreats the frames sent through another one, as a seeded program says: for
// tests and simulation. Lives on the executor of the endpoint it wraps, which also runs its delays.

#include <memory>

#include "ipc/transport/endpoint.h"
#include "runtime/actor/executor.h"

namespace refrain::ipc {

// Chances in a thousand, tried for each frame in this order; at most one of them strikes.
struct FaultProgram {
  uint64_t seed = 0;
  uint32_t drop = 0;
  uint32_t duplicate = 0;
  uint32_t corrupt = 0;  // 1 to 8 bits flipped
  uint32_t truncate = 0;
  uint32_t delay = 0;  // up to max_delay, so that later frames may overtake
  Duration max_delay = std::chrono::milliseconds(50);
};

struct FaultCounts {
  uint64_t sent = 0;  // frames that the caller sent
  uint64_t dropped = 0;
  uint64_t duplicated = 0;
  uint64_t corrupted = 0;
  uint64_t truncated = 0;
  uint64_t delayed = 0;
  uint64_t cut = 0;  // lost while the line was cut
};

class FaultEndpoint final : public Endpoint {
 public:
  FaultEndpoint(std::unique_ptr<Endpoint> inner, std::shared_ptr<Executor> executor,
                const FaultProgram& program);
  ~FaultEndpoint() override;

  void start(FrameHandler on_frame) override;
  // A frame lost to a fault is a success for the sender, as on a real line.
  Status send(const PeerId& to, std::span<const std::byte> frame) override;
  void close() override;
  std::string address() const override;
  uint64_t discarded() const override;

  void set_program(const FaultProgram& program);
  // While cut, nothing passes in either direction.
  void set_cut(bool cut);
  const FaultCounts& counts() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace refrain::ipc
