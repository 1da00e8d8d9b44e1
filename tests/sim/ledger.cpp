#include "tests/sim/ledger.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tests/sim/reference.h"

namespace refrain::sim {
namespace {

template <class Sequence>
bool begins_with(const Sequence& whole, const Sequence& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

class Checker {
 public:
  Checker(const Cluster& cluster, const LedgerRules& rules, const text::Tokenizer& tokenizer)
      : cluster_(cluster), rules_(rules), tokenizer_(tokenizer) {}

  void check(const Asked& asked) {
    asked_ = &asked;
    if (asked.request.timeout && asked.finishes > 0 &&
        asked.ended_at > asked.asked_at + *asked.request.timeout + rules_.latest)
      wrong("ended long after its deadline (I7)");
    if (!asked.ended()) return wrong("never ended (I1)");
    if (asked.finishes > 1) wrong("ended more than once (I1)");
    const Reference alone = reference();
    if (!begins_with(alone.tokens, asked.tokens))
      return wrong(
          fmt::format("got tokens {} instead of {} (I2, I3, I4)", asked.tokens, alone.tokens));
    if (asked.finishes == 0) return;
    switch (asked.finish) {
      case FinishReason::kStop:
      case FinishReason::kLength:
        return check_complete(alone);
      case FinishReason::kAbort:
        if (!asked.cancelled) wrong("was aborted and nobody had cancelled it");
        return check_part(alone);
      case FinishReason::kError:
        check_error();
        return check_part(alone);
      case FinishReason::kNone:
        return wrong("ended without a reason");
    }
  }

  std::vector<std::string> faults;

 private:
  // With the seed that the engine chose, when the client named none: one that explains all tokens.
  Reference reference() const {
    const GenerateRequest& request = asked_->request;
    const SimModel& model = cluster_.model(asked_->life);
    const auto run = [&](uint64_t seed) {
      return reference_answer(request, setup_of(request.sampling, seed), rules_.max_model_len,
                              model, tokenizer_);
    };
    if (request.sampling.seed || request.sampling.temperature == 0) return run(0);
    for (const uint64_t seed : cluster_.seeds_seen) {
      const ipc::SlotSetup setup = setup_of(request.sampling, seed);
      const TokenId first =
          testing::next_allowed(request.prompt, setup, 0, model.vocab, model.eos_every,
                                testing::draw_of(setup) ^ testing::draw_of(request.adapter));
      if (asked_->tokens.empty() || first != asked_->tokens.front()) continue;
      Reference answer = run(seed);
      if (begins_with(answer.tokens, asked_->tokens)) return answer;
    }
    return run(0);
  }

  // A request may be given up when it ends its workers, or when they were lost by chance while it
  // was alone, and once before; and at its deadline.
  void check_error() {
    const Error error = asked_->error.value_or(Error{});
    const bool by_chance = rules_.groups_lost > 1 && rules_.groups_lost > rules_.lost_to_poison;
    const bool given_up = error.message.find("it is not tried again") != std::string::npos &&
                          (asked_->poison || by_chance);
    const bool too_late = error.code == ErrorCode::kDeadline && asked_->request.timeout &&
                          asked_->ended_at >= asked_->asked_at + *asked_->request.timeout;
    if (!given_up && !too_late) wrong("ended with an error: " + error.message);
  }

  void check_complete(const Reference& alone) {
    const std::vector<std::string>& stops = asked_->request.sampling.stop;
    const size_t cut = stops.empty() ? std::string::npos : alone.text.find(stops.front());
    if (cut != std::string::npos) return check_cut(alone, cut, stops.front());
    if (asked_->tokens.size() != alone.tokens.size())
      wrong(fmt::format("ended after {} of {} tokens (I2)", asked_->tokens.size(),
                        alone.tokens.size()));
    if (asked_->finish != alone.finish) wrong("ended for another reason than alone");
    if (asked_->stop_reason != alone.stop_reason) wrong("names another stop than alone");
    if (asked_->text != alone.text)
      wrong(fmt::format("got the text '{}' instead of '{}' (I2)", asked_->text, alone.text));
  }

  void check_cut(const Reference& alone, size_t cut, const std::string& stop) {
    if (asked_->finish != FinishReason::kStop || asked_->stop_reason != stop)
      wrong("was not ended by its stop string");
    const bool included = asked_->request.sampling.include_stop_str_in_output;
    const std::string expected = alone.text.substr(0, cut + (included ? stop.size() : 0));
    if (asked_->text != expected)
      wrong(fmt::format("got the text '{}' instead of '{}' (I2)", asked_->text, expected));
  }

  void check_part(const Reference& alone) {
    if (!begins_with(alone.text, asked_->text))
      wrong(fmt::format("got the text '{}', no beginning of '{}' (I2)", asked_->text, alone.text));
  }

  void wrong(const std::string& what) {
    faults.push_back(fmt::format("request {}.{} {}", asked_->life, asked_->id, what));
  }

  const Cluster& cluster_;
  const LedgerRules& rules_;
  const text::Tokenizer& tokenizer_;
  const Asked* asked_ = nullptr;
};

}  // namespace

std::vector<std::string> check_answers(const Clients& clients, const Cluster& cluster,
                                       const LedgerRules& rules, const text::Tokenizer& tokenizer) {
  Checker checker(cluster, rules, tokenizer);
  for (const auto& asked : clients.asked()) checker.check(*asked);
  return std::move(checker.faults);
}

std::vector<std::string> check_idle_engine(const EngineStats& stats) {
  std::vector<std::string> faults;
  for (const GroupStats& group : stats.groups)
    if (group.state != GroupState::kReady)
      faults.push_back(fmt::format("group {} is {} and not ready: {}", group.group,
                                   to_string(group.state), group.state_detail));
  if (stats.blocks_free != stats.blocks_total || stats.blocks_total == 0)
    faults.push_back(
        fmt::format("{} of {} blocks are free (I5)", stats.blocks_free, stats.blocks_total));
  if (stats.requests_running + stats.requests_waiting > 0)
    faults.push_back(
        fmt::format("{} requests run and {} wait", stats.requests_running, stats.requests_waiting));
  const uint64_t ended = stats.requests_stopped + stats.requests_at_length +
                         stats.requests_aborted + stats.requests_failed;
  if (ended != stats.requests_total)
    faults.push_back(fmt::format("of {} requests {} ended (I1)", stats.requests_total, ended));
  return faults;
}

}  // namespace refrain::sim
