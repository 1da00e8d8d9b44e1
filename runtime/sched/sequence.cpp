#include "runtime/sched/sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace refrain {
namespace {

// The adapter's number in as many bytes for all, so that no salt can pass for it.
std::string space_of(const SequenceParams& params) {
  std::string space(sizeof params.adapter, '\0');
  std::memcpy(space.data(), &params.adapter, sizeof params.adapter);
  return space + params.cache_salt;
}

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
      tokens(std::move(prompt)),
      prompt_len(static_cast<int32_t>(tokens.size())),
      params(std::move(parameters)),
      block_space(space_of(params)) {
  params.setup.prompt_len = prompt_len;
}

bool Sequence::takes_drafts() const {
  const ipc::SlotSetup& setup = params.setup;
  return setup.repetition_penalty == 1.0f && setup.presence_penalty == 0.0f &&
         setup.frequency_penalty == 0.0f && setup.bad_words.empty() &&
         length() >= prompt_len + setup.min_tokens;
}

int32_t Sequence::num_to_score(int32_t computed, int32_t num_tokens) const {
  const int32_t count = std::min(num_tokens, prompt_len - 1 - computed);
  // None where all of them have been told before.
  return computed + count > static_cast<int32_t>(scores.logprobs.size()) ? std::max(count, 0) : 0;
}

int64_t Sequence::max_prefix_tokens() const {
  const ipc::SlotSetup& setup = params.setup;
  if (setup.repetition_penalty != 1.0f) return 0;
  const auto scored = static_cast<int64_t>(scores.logprobs.size());
  if (setup.num_prompt_logprobs >= 0 && scored < prompt_len - 1) return scored;
  const int64_t all_but_last = static_cast<int64_t>(tokens.size()) - 1;
  const bool counts_output = setup.presence_penalty != 0.0f || setup.frequency_penalty != 0.0f;
  return counts_output ? std::min<int64_t>(all_but_last, prompt_len) : all_but_last;
}

void Sequence::go_on_behind(std::span<const TokenId> begun, int64_t cached) {
  if (begun.empty()) return;
  tokens.insert(tokens.end(), begun.begin(), begun.end());
  cached_tokens = static_cast<int32_t>(cached);
  admitted_before = true;
}

void Sequence::lose_group() {
  const auto known = static_cast<int32_t>(tokens.size());
  in_lost_step = in_flight > 0;
  if (in_lost_step) {
    if (known - length_at_loss >= kProgress) group_losses = 0;
    ++group_losses;
    length_at_loss = known;
    length_to_prove = known + std::max(pending_most, kProof);
  }
  source.reset();
  promised.reset();
  state = SequenceState::kWaiting;
  pending = pending_most = in_flight = 0;
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
