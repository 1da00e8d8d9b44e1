#include "runtime/sched/sequence.h"

#include <algorithm>
#include <utility>

namespace refrain {
namespace {

// So many tokens after a loss clear a request of the suspicion that it causes them.
constexpr int32_t kProgress = 16;
// A step that computes all that is known, and one that decodes: both kinds have run again.
constexpr int32_t kProof = 2;

}  // namespace

TokenDigest digest_of(std::span<const TokenId> tokens) {
  TokenDigest digest;
  for (const TokenId token : tokens) digest.add(token);
  return digest;
}

Sequence::Sequence(RequestId request, std::vector<TokenId> prompt, SequenceParams parameters)
    : id(request),
      params(std::move(parameters)),
      tokens(std::move(prompt)),
      prompt_len(static_cast<int32_t>(tokens.size())) {
  params.setup.prompt_len = prompt_len;
}

bool Sequence::ends_in_flight(int64_t max_model_len) const {
  return output_len() + pending >= params.max_tokens || length() >= max_model_len;
}

int64_t Sequence::max_prefix_tokens() const {
  const ipc::SlotSetup& setup = params.setup;
  if (setup.repetition_penalty != 1.0f) return 0;
  const int64_t all_but_last = static_cast<int64_t>(tokens.size()) - 1;
  const bool counts_output = setup.presence_penalty != 0.0f || setup.frequency_penalty != 0.0f;
  return counts_output ? std::min<int64_t>(all_but_last, prompt_len) : all_but_last;
}

void Sequence::lose_group() {
  const auto known = static_cast<int32_t>(tokens.size());
  in_lost_step = in_flight > 0;
  if (in_lost_step) {
    if (known - length_at_loss >= kProgress) group_losses = 0;
    ++group_losses;
    length_at_loss = known;
    length_to_prove = known + std::max(pending, kProof);
  }
  state = SequenceState::kWaiting;
  pending = in_flight = 0;
}

StopCause Sequence::append(TokenId token, std::span<const TokenId> eos, int64_t max_model_len) {
  tokens.push_back(token);
  if (!params.ignore_eos && std::ranges::find(eos, token) != eos.end()) return StopCause::kEos;
  if (std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end())
    return StopCause::kStopToken;
  if (output_len() >= params.max_tokens) return StopCause::kMaxTokens;
  if (static_cast<int64_t>(tokens.size()) >= max_model_len) return StopCause::kMaxModelLen;
  return StopCause::kNone;
}

}  // namespace refrain
