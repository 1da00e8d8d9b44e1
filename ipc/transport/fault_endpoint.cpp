#include "ipc/transport/fault_endpoint.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace refrain::ipc {

struct FaultEndpoint::State {
  std::unique_ptr<Endpoint> inner;
  std::shared_ptr<Executor> executor;
  FaultProgram program;
  std::mt19937_64 random;
  FaultCounts counts;
  bool cut = false;
  bool closed = false;

  uint64_t below(uint64_t bound) { return random() % bound; }

  std::vector<std::byte> flip_bits(std::span<const std::byte> frame) {
    std::vector<std::byte> flipped(frame.begin(), frame.end());
    std::set<uint64_t> bits;  // distinct: two flips of one bit would heal it
    const uint64_t flips = std::min<uint64_t>(1 + below(8), flipped.size() * 8);
    while (bits.size() < flips) bits.insert(below(flipped.size() * 8));
    for (const uint64_t bit : bits) flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    return flipped;
  }

  void send_late(const std::shared_ptr<State>& self, const PeerId& to,
                 std::span<const std::byte> frame) {
    const auto longest = static_cast<uint64_t>(program.max_delay.count());
    const Duration wait(static_cast<Duration::rep>(below(longest + 1)));
    executor->post_after(wait,
                         [self, to, late = std::vector<std::byte>(frame.begin(), frame.end())] {
                           if (self->closed) return;
                           if (self->cut || !self->inner->send(to, late)) ++self->counts.cut;
                         });
  }
};

FaultEndpoint::FaultEndpoint(std::unique_ptr<Endpoint> inner, std::shared_ptr<Executor> executor,
                             const FaultProgram& program)
    : state_(std::make_shared<State>()) {
  state_->inner = std::move(inner);
  state_->executor = std::move(executor);
  set_program(program);
}

FaultEndpoint::~FaultEndpoint() { close(); }

void FaultEndpoint::set_program(const FaultProgram& program) {
  state_->program = program;
  state_->random.seed(program.seed);
}

void FaultEndpoint::set_cut(bool cut) { state_->cut = cut; }
const FaultCounts& FaultEndpoint::counts() const { return state_->counts; }
std::string FaultEndpoint::address() const { return state_->inner->address(); }
uint64_t FaultEndpoint::discarded() const { return state_->inner->discarded(); }

void FaultEndpoint::start(FrameHandler on_frame) {
  state_->inner->start([state = std::weak_ptr(state_), on_frame = std::move(on_frame)](
                           const PeerId& from, std::span<const std::byte> frame) {
    const auto self = state.lock();
    if (!self) return;
    if (self->cut) {
      ++self->counts.cut;
    } else {
      on_frame(from, frame);
    }
  });
}

Status FaultEndpoint::send(const PeerId& to, std::span<const std::byte> frame) {
  State& s = *state_;
  ++s.counts.sent;
  if (s.cut) {
    ++s.counts.cut;
    return {};
  }
  uint64_t dice = s.below(1000);
  const auto strikes = [&](uint32_t chance) {
    const bool hit = dice < chance;
    dice = hit ? UINT64_MAX : dice - chance;
    return hit;
  };
  if (strikes(s.program.drop)) {
    ++s.counts.dropped;
    return {};
  }
  if (strikes(s.program.duplicate)) {
    ++s.counts.duplicated;
    if (auto first = s.inner->send(to, frame); !first) return first;
    return s.inner->send(to, frame);
  }
  if (strikes(s.program.corrupt)) {
    ++s.counts.corrupted;
    return s.inner->send(to, s.flip_bits(frame));
  }
  if (strikes(s.program.truncate) && !frame.empty()) {
    ++s.counts.truncated;
    return s.inner->send(to, frame.first(s.below(frame.size())));
  }
  if (strikes(s.program.delay)) {
    ++s.counts.delayed;
    s.send_late(state_, to, frame);
    return {};
  }
  return s.inner->send(to, frame);
}

void FaultEndpoint::close() {
  state_->closed = true;
  state_->inner->close();
}

}  // namespace refrain::ipc
