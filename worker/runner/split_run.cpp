#include "worker/runner/split_run.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

constexpr size_t kAlignment = 256;

// Those in front of the first one that reads a weight: they make the step's inputs.
OpRange input_ops(const Program& program) {
  const auto reads_weight = [&](const Op& op) {
    return std::ranges::any_of(
        reads(op), [&](ValueId id) { return program.value(id).kind == ValueKind::kWeight; });
  };
  return {0,
          static_cast<int>(std::ranges::find_if(program.ops, reads_weight) - program.ops.begin())};
}

size_t bytes_of(const Value& value, const ExtentSizes& sizes) {
  const auto bytes =
      static_cast<size_t>(value.rows.resolve(sizes) * value.cols) * size_of(value.dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int num_pieces(const Lowering& lowering) { return static_cast<int>(lowering.pieces.size()); }

int first_piece(int pieces, int32_t part, int32_t parts) {
  return static_cast<int>(int64_t{pieces} * part / parts);
}

}  // namespace

std::vector<ValueId> values_across(const Lowering& lowering, int piece) {
  const Program& program = lowering.program;
  const int cut = lowering.pieces[static_cast<size_t>(piece)].ops.begin;
  std::vector<bool> written(program.values.size(), false);
  for (int i = input_ops(program).end; i < cut; ++i)
    for (const ValueId id : writes(program.ops[static_cast<size_t>(i)]))
      written[static_cast<size_t>(id)] = program.value(id).storage == Storage::kArena;
  std::vector<ValueId> across;
  for (size_t i = static_cast<size_t>(cut); i < program.ops.size(); ++i)
    for (const ValueId id : reads(program.ops[i]))
      if (written[static_cast<size_t>(id)] && std::ranges::find(across, id) == across.end())
        across.push_back(id);
  return across;
}

Result<std::unique_ptr<SplitRun>> SplitRun::create(Device& device, HostedProgram& program,
                                                   int32_t parts) {
  std::unique_ptr<SplitRun> run(parts == 1 ? nullptr : new SplitRun);
  if (run == nullptr) return run;
  run->parts_ = parts;
  for (const Lowering* lowering : program.lowerings()) {
    if (lowering->decode) continue;  // no prompt runs there
    const int pieces = num_pieces(*lowering);
    if (parts < 1 || parts > pieces)
      return fail_field("--split-prefill",
                        "--split-prefill: {} parts of a program that is cut into {}; give at most "
                        "{}, and a CUDA graph mode with PIECEWISE, which cuts it",
                        parts, pieces, pieces);
    const ExtentSizes sizes = lowering->program.max_sizes();
    for (int32_t part = 1; part < parts; ++part) {
      size_t bytes = 0;
      for (const ValueId id : values_across(*lowering, first_piece(pieces, part, parts)))
        bytes += bytes_of(lowering->program.value(id), sizes);
      run->bytes_ = std::max(run->bytes_, bytes);
    }
  }
  if (run->bytes_ > 0) run->kept_ = device.allocate(run->bytes_, MemoryTag::kInputs);
  return run;
}

void SplitRun::check(const ipc::Step& step, const Lowering& lowering,
                     const BatchDescriptor& key) const {
  const ipc::Run& run = step.runs.front();
  REFRAIN_CHECK(run.parts == parts_ && run.part >= 0 && run.part < parts_,
                "step {}: part {} of {} of a run, split_prefill is {}", step.step, run.part,
                run.parts, parts_);
  for (size_t row = 0; row < run.rows.slot.size(); ++row) {
    const uint8_t allowed = run.ends() ? ipc::kSamples : 0;
    REFRAIN_CHECK((run.rows.flags[row] & ~allowed) == 0,
                  "step {} row {}: flags {} in part {} of {}", step.step, row, run.rows.flags[row],
                  run.part, run.parts);
  }
  if (run.part == 0) return;
  REFRAIN_CHECK(run.part == next_part_, "step {} has part {} of a run, part {} is next", step.step,
                run.part, next_part_);
  const ipc::Rows& rows = first_.runs.front().rows;
  REFRAIN_CHECK(run.rows.slot == rows.slot && run.rows.computed == rows.computed &&
                    run.rows.num_tokens == rows.num_tokens &&
                    run.rows.token_ids == rows.token_ids && key == key_ && &lowering == lowering_,
                "step {} goes on with a run of other rows", step.step);
}

void SplitRun::copy(Direction direction, const Lowering& lowering, const BatchDescriptor& key,
                    int piece, Stream& stream) const {
  const ExtentSizes sizes = padded_sizes(lowering.program, key);
  size_t at = 0;
  for (const ValueId id : values_across(lowering, piece)) {
    const size_t bytes = bytes_of(lowering.program.value(id), sizes);
    REFRAIN_CHECK(at + bytes <= bytes_, "more than {} bytes cross piece {}", bytes_, piece);
    std::byte* kept = static_cast<std::byte*>(kept_->data()) + at;
    void* arena = lowering.context.address(id);
    const bool keeps = direction == Direction::kKeep;
    stream.copy(keeps ? kept : arena, keeps ? arena : kept, bytes);
    at += bytes;
  }
}

void SplitRun::run(const ipc::Step& step, const Lowering& lowering, const BatchDescriptor& key,
                   const Executable* executable, const BatchShape& batch, Stream& stream,
                   GraphCounters& counters) {
  check(step, lowering, key);
  const ipc::Run& run = step.runs.front();
  const int begin = first_piece(num_pieces(lowering), run.part, parts_);
  const int end = first_piece(num_pieces(lowering), run.part + 1, parts_);
  if (run.part == 0) {
    first_ = step;
    key_ = key;
    lowering_ = &lowering;
  } else {
    launch_ops(lowering.context, input_ops(lowering.program), key, &batch);
    copy(Direction::kRestore, lowering, key, begin, stream);
  }
  if (executable != nullptr) {
    run_pieces(lowering.context, *executable, key, batch, counters, begin, end);
  } else {
    const auto piece = [&](int i) { return lowering.pieces[static_cast<size_t>(i)].ops; };
    launch_ops(lowering.context, {piece(begin).begin, piece(end - 1).end}, key, &batch);
    ++counters.num_eager_runs;
  }
  next_part_ = run.ends() ? 0 : run.part + 1;
  if (!run.ends()) copy(Direction::kKeep, lowering, key, end, stream);
}

}  // namespace refrain::worker
