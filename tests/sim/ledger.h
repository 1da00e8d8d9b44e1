#pragma once
// The ledger of one simulation: I1 each accepted request has one end, I2 no gap and no repeat, I3
// the tokens of a run without faults, I4 no token of another, I5 all blocks free once idle.

#include <string>
#include <vector>

#include "tests/sim/clients.h"

namespace refrain::sim {

struct LedgerRules {
  size_t groups_lost = 0;
  size_t lost_to_poison = 0;  // of these; the others can cost a request that is alone its life
  Duration latest{};          // how late a deadline may be noticed: the coordinator may stand still
  int64_t max_model_len = 64;
};

// What is wrong with the answers; empty: nothing.
std::vector<std::string> check_answers(const Clients& clients, const Cluster& cluster,
                                       const LedgerRules& rules, const text::Tokenizer& tokenizer);
// What is wrong with the idle engine.
std::vector<std::string> check_idle_engine(const EngineStats& stats);

}  // namespace refrain::sim
