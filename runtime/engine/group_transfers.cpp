// The part of GroupService for requests between groups.

#include "runtime/engine/group_service.h"

namespace refrain {

void GroupService::send_orders() {
  for (const ipc::Message& order : scheduler_->take_orders()) tell(order);
  if (watches_transfers_ || !scheduler_->has_transfers()) return;
  watches_transfers_ = true;
  executor_->post_after(to_duration(config_.kv_transfer_timeout) / 8, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->watches_transfers_ = false;
    self->check_transfers();
  });
}

// What has left goes to the engine, when the tokens of the step that it left with are told.
void GroupService::settle_transfers() {
  if (!scheduler_) return;
  for (auto& sequence : scheduler_->take_handed_over()) {
    sequence->source->group = stats_.group();
    sequence->source->epoch = epoch();
    handlers_.on_handed_over(std::move(sequence));
  }
  for (auto& sequence : scheduler_->take_failed())
    handlers_.on_transfer_failed(std::move(sequence));
  for (const MovedBlocks& moved : scheduler_->take_moved()) handlers_.on_moved(moved);
  send_orders();
}

void GroupService::on_pulled(int32_t rank, const ipc::Pulled& report) {
  if (!scheduler_) return;
  scheduler_->pulled(rank, report, now());
  settle_transfers();
  handlers_.on_transfers();
}

void GroupService::check_transfers() {
  if (!scheduler_ || !scheduler_->has_transfers()) return;
  scheduler_->check_transfers(now());
  settle_transfers();
  handlers_.on_transfers();
}

}  // namespace refrain
