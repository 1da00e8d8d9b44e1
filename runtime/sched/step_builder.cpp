#include "runtime/sched/step_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

void clear(ipc::Step& step) {
  ipc::Rows& rows = step.runs.front().rows;
  rows.slot.clear();
  rows.num_tokens.clear();
  rows.computed.clear();
  rows.flags.clear();
  rows.token_ids.clear();
  rows.next_tokens.clear();
  for (ipc::BlockUpdates& group : step.blocks) {
    group.slot.clear();
    group.index.clear();
    group.block.clear();
  }
  step.runs.front().part = 0;
  step.runs.front().parts = 1;
  step.setups.clear();
  step.has_lora = false;
  step.placements.clear();
  step.together.clear();
}

ipc::ForwardMode forward_mode(const ipc::Rows& rows) {
  bool decodes = false, drafts = false, chunks = false;
  for (size_t row = 0; row < rows.slot.size(); ++row) {
    const bool one = rows.num_tokens[row] == 1 && rows.computed[row] != 0;
    const bool verifies = (rows.flags[row] & ipc::kVerifies) != 0;
    (one ? decodes : verifies ? drafts : chunks) = true;
  }
  if ((decodes || drafts) && chunks) return ipc::ForwardMode::kMixed;
  if (drafts) return ipc::ForwardMode::kTargetVerify;
  return decodes ? ipc::ForwardMode::kDecode : ipc::ForwardMode::kExtend;
}

constexpr uint8_t kEagerOnly = 1 << static_cast<int>(ipc::RuntimeMode::kNone), kAnyMode = 7;

// Of any n steps n * rate, evenly spread; a function of the number alone.
bool is_audited(StepId step, double rate) {
  return std::floor(static_cast<double>(step) * rate) >
         std::floor(static_cast<double>(step - 1) * rate);
}

}  // namespace

StepBuilder::StepBuilder(const SchedulerOptions& options, BlockPools& pools)
    : options_(options), pools_(pools), cascade_(options.groups, options.block_size) {
  plan_.step().runs.resize(options_.draft_model ? 2 : 1);
  if (options_.draft_model)
    plan_.step().runs[1] = {ipc::ProgramId::kDraftModel, ipc::ForwardMode::kDraftExtend, {}};
  plan_.step().blocks.resize(options_.groups.size());
}

void StepBuilder::begin(TimePoint now, int32_t query_len) {
  now_ = now;
  clear(plan_.step());
  building_.rows.clear();
  if (building_.rows.capacity() == 0 && !spare_rows_.empty()) {
    building_.rows = std::move(spare_rows_.back());
    spare_rows_.pop_back();
  }
  building_.query_len = query_len;
  prebuilt_rows_ = false;
  scores_left_ = ipc::kMaxPromptScores;
  step_bytes_ = ipc::kEmptyStepBytes + plan_.step().runs.size() * ipc::kMinRunBytes +
                options_.groups.size() * ipc::kMinBlockUpdatesBytes +
                static_cast<size_t>(options_.max_loras) * ipc::kAdapterPlacementBytes +
                static_cast<size_t>(options_.replicas) * ipc::kStepSizeBytes;
  history_left_ = options_.num_drafts > 0 ? options_.max_num_batched_tokens : 0;
}

void StepBuilder::set_part(int32_t part) {
  ipc::Run& run = plan_.step().runs.front();
  run.parts = options_.split_prefill;
  run.part = part;
}

PlannedStep StepBuilder::finish(std::vector<ipc::AdapterPlacement> placements) {
  ipc::Step& step = plan_.step();
  ipc::Run& run = step.runs.front();
  step.step = next_step_++;
  step.placements = std::move(placements);
  // Steps that score prompts run without graphs (CG-13) and without an audit.
  const bool scores = scores_left_ < ipc::kMaxPromptScores;
  step.allowed_modes = scores ? kEagerOnly : kAnyMode;
  step.audit = !scores && run.parts == 1 && is_audited(step.step, options_.audit_rate);
  run.mode = forward_mode(run.rows);
  if (prebuilt_rows_ && run.mode == ipc::ForwardMode::kDecode)
    run.mode = ipc::ForwardMode::kPrebuilt;
  const SharedPrefix shared = cascade_.prefix(building_.rows);
  step.shared_prefix = shared.tokens;
  step.shared_rows = shared.rows;
  step.cascade = shared.rows > 0;
  if (step.cascade) ++cascade_steps_;
  step.has_lora =
      options_.max_loras > 0 && std::ranges::any_of(building_.rows, [](const PlannedRow& row) {
        return row.sequence->adapter_place >= 0;
      });
  building_.step = step.step;
  return std::exchange(building_, {});
}

void StepBuilder::recycle(std::vector<PlannedRow> rows) {
  rows.clear();
  spare_rows_.push_back(std::move(rows));
}

int32_t StepBuilder::chunk_budget_left() const {
  if (!options_.enable_chunked_prefill) return budget_left();
  return std::min(budget_left(), limits_.step - (num_tokens() - num_decodes_));
}

int32_t StepBuilder::long_limit_left() const {
  if (num_decodes_ == 0 || !options_.enable_chunked_prefill || options_.split_prefill > 1)
    return std::numeric_limits<int32_t>::max();
  return std::max(limits_.long_beside_decodes - long_tokens_, 0);
}

int32_t StepBuilder::room_for_more(const Sequence& sequence, int32_t computed,
                                   int32_t wanted) const {
  size_t bytes = step_bytes_ + ipc::kStepRowBytes;
  if (!sequence.setup_sent) {
    bytes += ipc::bytes_of(sequence.params.setup);
    bytes += static_cast<size_t>(history_of(computed)) * sizeof(TokenId);
    if (sequence.params.setup.follows_output())
      bytes += static_cast<size_t>(sequence.output_len()) * ipc::kStepTokenBytes;
  }
  bytes += pools_.num_unsent(sequence, computed + options_.draft_reach()) * ipc::kBlockUpdateBytes;
  if (options_.draft_head) bytes += sizeof(TokenId);
  if (bytes + sizeof(TokenId) >= options_.max_step_bytes) return 0;
  const size_t fit = (options_.max_step_bytes - bytes) / token_bytes();
  int32_t most = std::min(wanted, budget_left());
  if (sequence.num_scored(computed, most) > 0) {
    const int64_t entries = 1 + sequence.params.setup.num_prompt_logprobs;
    bytes += sizeof(TokenId);
    most = static_cast<int32_t>(std::min<int64_t>(most, scores_left_ / entries));
  }
  return fit < static_cast<size_t>(most) ? static_cast<int32_t>(fit) : most;
}

void StepBuilder::add_row(Sequence& sequence, int32_t num_tokens) {
  if (!sequence.setup_sent) add_setup(sequence);
  prebuilt_rows_ |= std::exchange(sequence.prebuilt, false);
  const int32_t from = sequence.num_scheduled;
  const int32_t to = from + num_tokens;
  const ipc::Run& run = plan_.step().runs.front();
  const bool samples = to == sequence.length() && run.ends();
  ipc::Rows& rows = this->rows();
  rows.slot.push_back(sequence.slot);
  rows.num_tokens.push_back(num_tokens);
  rows.computed.push_back(from);
  rows.flags.push_back(static_cast<uint8_t>(samples ? ipc::kSamples : 0));
  // What the slot has sampled is not sent back to it: the device would count it twice.
  const auto known = sequence.sampled ? from : static_cast<int32_t>(sequence.tokens.size());
  const int32_t known_to = std::min(to, known);
  if (from < known_to)
    rows.token_ids.insert(rows.token_ids.end(), sequence.tokens.begin() + from,
                          sequence.tokens.begin() + known_to);
  REFRAIN_CHECK(to - std::max(from, known) <= 1, "a row may take one token from the device");
  if (to > known) rows.token_ids.push_back(kTokenOnDevice);
  const int32_t scored = sequence.num_scored(from, num_tokens);
  if (scored > 0) {
    rows.flags.back() |= ipc::kScores;
    rows.next_tokens.push_back(to < sequence.prompt_len ? sequence.tokens[static_cast<size_t>(to)]
                                                        : TokenId{-1});
    step_bytes_ += sizeof(TokenId);
    scores_left_ -= int64_t{scored} * (1 + sequence.params.setup.num_prompt_logprobs);
  }
  if (options_.draft_head && !samples) {
    rows.flags.back() |= ipc::kContinues;
    rows.next_tokens.push_back(sequence.tokens.at(static_cast<size_t>(to)));
    step_bytes_ += sizeof(TokenId);
  }
  if (sequence.long_prompt) long_tokens_ += num_tokens;
  sequence.num_scheduled = to;
  sequence.planned = next_step_;
  if (run.part == 0) send_blocks(sequence, to + options_.draft_reach());
  step_bytes_ += ipc::kStepRowBytes + static_cast<size_t>(num_tokens) * ipc::kStepTokenBytes;
  if (samples) {
    ++sequence.pending;
    ++sequence.pending_most;
  }
  sequence.sampled = samples;
  ++sequence.in_flight;
  const int32_t computed = run.ends() ? to : from;
  building_.rows.push_back({&sequence, computed, samples ? 1 : 0, samples ? 1 : 0, scored, from});
}

// The device proposes the drafts and knows how many were right: the row is planned as if it gave
// the least, and its blocks by the most.
void StepBuilder::add_verification(Sequence& sequence, int32_t end) {
  const int32_t tokens = query_len();
  const bool drafts = tokens > 1 && sequence.takes_drafts();
  const bool known = sequence.pending == sequence.pending_most;
  int flags = ipc::kSamples | ipc::kVerifies;
  if (!drafts) flags |= ipc::kNoDrafts;
  ipc::Rows& rows = this->rows();
  rows.slot.push_back(sequence.slot);
  rows.num_tokens.push_back(tokens);
  rows.computed.push_back(known ? sequence.num_scheduled : ipc::kComputedOnDevice);
  rows.flags.push_back(static_cast<uint8_t>(flags));
  rows.token_ids.insert(rows.token_ids.end(), static_cast<size_t>(tokens), kTokenOnDevice);
  ++sequence.num_scheduled;
  send_blocks(sequence, end + options_.draft_reach());
  step_bytes_ += ipc::kStepRowBytes + static_cast<size_t>(tokens) * ipc::kStepTokenBytes;
  const int32_t most = drafts ? tokens : 1;
  ++sequence.pending;
  sequence.pending_most += most;
  ++sequence.in_flight;
  building_.rows.push_back({&sequence, ipc::kComputedOnDevice, 1, most});
}

void StepBuilder::add_setup(Sequence& sequence) {
  sequence.setup_sent = true;
  ipc::SlotSetup& setup = plan_.step().setups.emplace_back(sequence.params.setup);
  setup.slot = sequence.slot;
  setup.adapter = sequence.adapter_place;
  if (setup.follows_output())
    setup.output_tokens.assign(sequence.tokens.begin() + sequence.prompt_len,
                               sequence.tokens.end());
  if (options_.num_drafts > 0) add_history(sequence, setup);
  step_bytes_ += ipc::bytes_of(setup);
}

// How many of `cached` tokens a slot that is set up now is told.
int32_t StepBuilder::history_of(int32_t cached) const {
  const auto room = static_cast<int32_t>(options_.largest_part() / 4 / sizeof(TokenId));
  return options_.num_drafts == 0 ? 0 : std::min({cached, history_left_, room});
}

// What the prefix cache holds of it, or the end of that: the device looks drafts up in it.
void StepBuilder::add_history(const Sequence& sequence, ipc::SlotSetup& setup) {
  const int32_t cached = sequence.num_scheduled, count = history_of(cached);
  history_left_ -= count;
  setup.history_begin = cached - count;
  setup.history.assign(sequence.tokens.begin() + setup.history_begin,
                       sequence.tokens.begin() + cached);
}

}  // namespace refrain
