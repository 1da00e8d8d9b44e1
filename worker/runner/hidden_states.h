#pragma once
// Of which tokens of a step a Program leaves hidden states, and of which they are read (CG-35).
// Pure.

#include "worker/dispatch/batch_shape.h"
#include "worker/program/program.h"

namespace refrain::worker {

// Of a language model's Program: for a draft head, or for its own pooling.
ipc::CaptureHiddenMode hidden_left(const Program& program);

// Of what `model` leaves; `draft` is null where there is none.
HiddenReaders hidden_readers(const Program& model, const Program* draft);

}  // namespace refrain::worker
