#include "runtime/engine/group_transfers.h"

#include <utility>

#include "runtime/engine/group_service.h"

namespace refrain {

void GroupTransfers::send_orders() {
  if (!scheduler_) return;
  for (const ipc::Message& order : scheduler_->take_orders()) {
    group_.tell(order);
    group_.changed();
  }
  if (watches_ || !scheduler_->has_transfers()) return;
  watches_ = true;
  run_later_(timeout_ / 8, [this] {
    watches_ = false;
    check();
  });
}

void GroupTransfers::settle() {
  if (!scheduler_) return;
  tell_promised();
  for (auto& sequence : scheduler_->take_handed_over()) {
    sequence->source->group = group_.id;
    sequence->source->epoch = group_.epoch();
    handlers_.on_handed_over(std::move(sequence));
  }
  for (auto& sequence : scheduler_->take_failed())
    handlers_.on_transfer_failed(std::move(sequence));
  for (const MovedBlocks& moved : scheduler_->take_moved()) handlers_.on_moved(moved);
  send_orders();
}

bool GroupTransfers::expect(PromisedRequest request) {
  if (!scheduler_ || !scheduler_->expect(std::move(request), executor_.clock().now())) return false;
  send_orders();
  return true;
}

void GroupTransfers::forget(RequestId id) {
  if (!scheduler_) return;
  scheduler_->forget(id);
  group_.changed();
  send_orders();
  run_later_(Duration::zero(), [this] { handlers_.pump(); });  // others may have its room
}

void GroupTransfers::tell_promised() {
  if (!scheduler_) return;
  for (const RequestId id : scheduler_->take_withdrawn()) handlers_.on_withdrawn(id);
  for (PromisedRequest& request : scheduler_->take_promised()) {
    request.stands_for->source->group = group_.id;
    request.stands_for->source->epoch = group_.epoch();
    handlers_.on_promised(std::move(request));
  }
}

void GroupTransfers::pulled(int32_t rank, const ipc::Pulled& report) {
  if (!scheduler_) return;
  scheduler_->pulled(rank, report, executor_.clock().now());
  tell_ended();
}

void GroupTransfers::check() {
  if (!scheduler_) return;
  scheduler_->check_transfers(executor_.clock().now());
  tell_ended();
}

void GroupTransfers::tell_ended() {
  if (!scheduler_) return;
  group_.changed();
  settle();
  handlers_.on_transfers();
}

}  // namespace refrain
