#include "worker/dispatch/batch_shape.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain::worker {

bool is_uniform_decode(std::span<const int32_t> query_lens, std::span<const int32_t> context_lens,
                       int32_t uniform_query_len) {
  return ipc::is_even(query_lens, context_lens) && query_lens.front() == uniform_query_len;
}

const ipc::Rows& rows_of(const ipc::Step& step) {
  static const ipc::Rows kNone;
  for (size_t i = 0; i < step.runs.size(); ++i) {
    const ipc::Run& run = step.runs[i];
    const bool drafts = i == 1 && run.program == ipc::ProgramId::kDraftModel;
    REFRAIN_CHECK(
        i == 0 ? run.program == ipc::ProgramId::kLanguageModel
               : drafts && run.rows.num_tokens.empty(),
        "step {}: run {} of {} is not the language model's, or its draft model's over the same "
        "rows",
        step.step, i, step.runs.size());
  }
  return step.runs.empty() ? kNone : step.runs.front().rows;
}

BatchShape batch_shape(const ipc::StepSize& size, std::span<const int32_t> uniform_query_lens) {
  BatchShape shape;
  shape.num_tokens = size.num_tokens;
  shape.num_reqs = size.num_reqs;
  shape.uniform = size.even && std::ranges::any_of(uniform_query_lens, [&size](int32_t q) {
                    return q * size.num_reqs == size.num_tokens;
                  });
  shape.cascade = size.cascade;
  shape.has_lora = size.has_lora;
  shape.allowed_modes = size.allowed_modes;
  return shape;
}

namespace {

ipc::CaptureHiddenMode read_of(const ipc::Step& step, const HiddenReaders& readers) {
  using enum ipc::CaptureHiddenMode;
  const auto ends_prompt = [&step] {
    return std::ranges::any_of(rows_of(step).flags,
                               [](uint8_t flags) { return (flags & ipc::kSamples) != 0; });
  };
  const bool pools = readers.pooling == kFull || (readers.pooling == kLast && ends_prompt());
  return std::max(step.runs.size() > 1 ? readers.draft : kNull, pools ? readers.pooling : kNull);
}

}  // namespace

BatchShape batch_shape(const ipc::Step& step, std::span<const int32_t> uniform_query_lens,
                       const HiddenReaders& readers) {
  const ipc::Rows& rows = rows_of(step);
  BatchShape shape = batch_shape(ipc::size_of(step), uniform_query_lens);
  for (size_t row = 0; row < rows.slot.size(); ++row)
    shape.num_samples += (rows.flags[row] & ipc::kVerifies) != 0 ? rows.num_tokens[row] : 1;
  if (shape.num_reqs > 0) shape.hidden = read_of(step, readers);
  return shape;
}

}  // namespace refrain::worker
