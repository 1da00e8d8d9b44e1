#pragma once
// What a model keeps of its requests from step to step. Layers that keep the same, alike long, are
// a group: it has its own memory, its own block table, its own attention backend. What its kinds
// are good for (full attention, a sliding window, a recurrent state) nothing but the model and its
// ops know. Sizes, shares of ranks, audits and printing follow from the layouts.

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "kernels/core/dtype.h"
#include "worker/dispatch/attention_support.h"
#include "worker/program/value.h"

namespace refrain::worker {

using ipc::StateKind;

// A part of what a layer keeps of a token: keys, values, a latent, scales.
struct PagedPart {
  std::string name;
  SplitUnit split = SplitUnit::kNone;  // kNone: every rank has all of it
  int64_t units = 0;                   // of this rank: KV heads, …
  int64_t elements = 0;                // a unit and token
  DType dtype = DType::kBFloat16;
  int64_t first_unit = 0;  // of this rank, counted over all ranks

  int64_t unit_bytes() const { return elements * static_cast<int64_t>(size_of(dtype)); }
  int64_t token_bytes() const { return units * unit_bytes(); }
  bool operator==(const PagedPart&) const = default;
};

// A layer's block: its parts one after the other, each [unit][token][elements].
struct PagedLayout {
  std::vector<PagedPart> parts = {};

  int64_t cols() const {  // elements a token
    int64_t all = 0;
    for (const PagedPart& part : parts) all += part.units * part.elements;
    return all;
  }
  int64_t token_bytes() const {
    int64_t bytes = 0;
    for (const PagedPart& part : parts) bytes += part.token_bytes();
    return bytes;
  }
  bool operator==(const PagedLayout&) const = default;
};

// A layer's state of one request; it is zero when a request enters its slot. A step with drafts
// adds tokens of which later ones may be wrong, so that the slot keeps the state after each of the
// last `versions` tokens, that after position p as number p % versions. The next step's positions
// say where it goes on: what is accepted is kept and what is not is passed over, without a copy.
struct SlotLayout {
  SplitUnit split = SplitUnit::kNone;
  int64_t elements = 0;  // of this rank
  DType dtype = DType::kFloat32;
  int64_t versions = 1;

  int64_t cols() const { return versions * elements; }  // of a slot
  // Of one of them, as a checkpoint keeps it.
  int64_t bytes() const { return elements * static_cast<int64_t>(size_of(dtype)); }
  bool operator==(const SlotLayout&) const = default;
};

struct StateGroup {
  std::string name;
  StateKind kind = StateKind::kPaged;
  std::vector<int> layers = {};
  PagedLayout paged = {};  // of each layer
  SlotLayout slot = {};    // of each layer
  int64_t window = 0;      // kPaged: tokens that a layer looks back, its own included; 0: all
  AttentionCGSupport support = AttentionCGSupport::kAlways;
};

}  // namespace refrain::worker
