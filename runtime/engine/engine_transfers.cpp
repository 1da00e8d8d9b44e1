// The part of EngineCore that decides whether a prompt's blocks move.

#include <algorithm>

#include "runtime/engine/engine_core.h"

namespace refrain {

// By the fastest decode group that has computed prompts; before one has, by what prompts take in a
// prefill group, as if ranks shared the work evenly.
bool EngineCore::transfer_pays(const Sequence& sequence) {
  if (config_.kv_transfer_policy == "always") return true;
  std::optional<double> decode, prefill;
  const auto best = [](std::optional<double>& to, double seconds) {
    to = to ? std::min(*to, seconds) : seconds;
  };
  double decode_ranks = 1;
  for (const Group& each : config_.groups()) {
    const double ranks = each.num_ranks();
    const auto seconds = group(each.id).seconds_a_token();
    const bool decodes = router_.role(each.id) == ipc::GroupRole::kDecode;
    if (decodes) decode_ranks = std::max(decode_ranks, ranks);
    if (seconds) best(decodes ? decode : prefill, decodes ? *seconds : *seconds * ranks);
  }
  if (!decode && prefill) decode = *prefill / decode_ranks;
  return transfer_choice_.pays(sequence.length(), decode);
}

}  // namespace refrain
