#pragma once
// What dispatch needs to know of a step, and the one place that decides whether a batch is a
// uniform decode. Shared by the worker, `refrain plan` and tests. Pure; any thread.

#include <cstdint>
#include <span>

#include "ipc/protocol/messages.h"

namespace refrain::worker {

// A padded batch: the key of an executable. For NONE, the batch's own numbers.
struct BatchDescriptor {
  int32_t num_tokens = 0;
  int32_t num_reqs = 0;
  bool uniform = false;  // uniform decode: every request has exactly q = tokens / requests
  bool has_lora = false;
  ipc::CaptureHiddenMode hidden = ipc::CaptureHiddenMode::kNull;  // what the Program leaves
  bool operator==(const BatchDescriptor&) const = default;
};

struct BatchShape {
  int32_t num_tokens = 0;
  int32_t num_reqs = 0;
  bool uniform = false;
  bool cascade = false;  // forbids FULL (CG-13)
  bool has_lora = false;
  uint8_t allowed_modes = 7;                                      // bit i: RuntimeMode i
  int32_t num_samples = 0;                                        // rows of logits; decides no key
  ipc::CaptureHiddenMode hidden = ipc::CaptureHiddenMode::kNull;  // what of it is read
};

// Who reads hidden states of a step, and of which tokens.
struct HiddenReaders {
  ipc::CaptureHiddenMode draft = ipc::CaptureHiddenMode::kNull;    // a run of the draft model
  ipc::CaptureHiddenMode pooling = ipc::CaptureHiddenMode::kNull;  // LAST: of rows that sample
};

// Every request has exactly q tokens over an existing context (for q = 1 that includes a prefill
// chunk of one token). `context_lens` empty: the query lengths alone decide. An empty batch is not.
bool is_uniform_decode(std::span<const int32_t> query_lens, std::span<const int32_t> context_lens,
                       int32_t uniform_query_len);

// The rows of a step, none of an idle one: those of the language model's run, over which the draft
// model's goes too.
const ipc::Rows& rows_of(const ipc::Step& step);

BatchShape batch_shape(const ipc::StepSize& size, std::span<const int32_t> uniform_query_lens);

// Uniform when it is so for one of these lengths.
BatchShape batch_shape(const ipc::Step& step, std::span<const int32_t> uniform_query_lens,
                       const HiddenReaders& readers = {});

}  // namespace refrain::worker
