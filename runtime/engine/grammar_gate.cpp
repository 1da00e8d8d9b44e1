#include "runtime/engine/grammar_gate.h"

#include <algorithm>
#include <utility>

namespace refrain {

void GrammarGate::add(std::unique_ptr<Sequence> sequence) {
  held_.push_back({std::move(sequence), false, 0});
}

const Sequence* GrammarGate::find(RequestId id) const {
  for (const Held& held : held_)
    if (held.sequence->id == id) return held.sequence.get();
  return nullptr;
}

std::vector<ipc::Grammar> GrammarGate::take_unsent() {
  std::vector<ipc::Grammar> grammars;
  for (Held& held : held_) {
    if (std::exchange(held.sent, true)) continue;
    grammars.push_back({held.sequence->id, held.sequence->params.setup.grammar});
  }
  return grammars;
}

std::unique_ptr<Sequence> GrammarGate::compiled(RequestId id, int32_t num_ranks) {
  const auto held =
      std::ranges::find_if(held_, [id](const Held& each) { return each.sequence->id == id; });
  if (held == held_.end() || !held->sent || ++held->compiled < num_ranks) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(held->sequence);
  held_.erase(held);
  return sequence;
}

void GrammarGate::remove(RequestId id) {
  std::erase_if(held_, [id](const Held& held) { return held.sequence->id == id; });
}

std::vector<std::unique_ptr<Sequence>> GrammarGate::release_all() {
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (Held& held : std::exchange(held_, {})) sequences.push_back(std::move(held.sequence));
  return sequences;
}

}  // namespace refrain
