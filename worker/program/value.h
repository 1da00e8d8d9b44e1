#pragma once
// The values of a Program: named, typed, their rows counted by extents. Ops name them by id.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace refrain::worker {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// What rows are counted by: the tokens of a step, its requests, … A key pads every extent of a
// Program; the device reads the live count.
struct Extent {
  std::string name;
  int64_t max = 0;          // of any step
  ValueId live = kNoValue;  // its count on the device, int32
};
using ExtentId = int32_t;
inline constexpr ExtentId kNoExtent = -1, kTokens = 0, kRequests = 1,
                          kSamples = 2;  // of a language model; kSamples: with speculation
inline constexpr size_t kMaxExtents = 4;
// A number for each extent of a Program: padded sizes, live counts or maxima.
using ExtentSizes = std::array<int64_t, kMaxExtents>;

// Number of rows of a value: extent * scale + more, or the constant `scale`.
struct Dim {
  ExtentId extent = kNoExtent;
  int64_t scale = 1;
  int64_t more = 0;
  static Dim constant(int64_t n) { return {kNoExtent, n}; }
  static Dim tokens(int64_t scale = 1) { return {kTokens, scale}; }
  static Dim requests(int64_t scale = 1) { return {kRequests, scale}; }
  static Dim samples(int64_t scale = 1) { return {kSamples, scale}; }
  int64_t resolve(const ExtentSizes& sizes) const {
    return extent == kNoExtent ? scale : scale * sizes[static_cast<size_t>(extent)] + more;
  }
  bool operator==(const Dim&) const = default;
};

enum class ValueKind : uint8_t {
  kActivation,  // lives between its first and last use
  kWeight,      // read-only, loaded from the checkpoint
  kInput,       // of a step: from the host, or what prepare_inputs makes of that
  kState,       // outlives the step: KV cache of a layer, state of the slots
  kOutput,      // outlives the run (logits, hidden states a Program names, sampled tokens)
};

enum class Storage : uint8_t {
  kArena,   // a place of the memory plan
  kDevice,  // device memory of its own
  kPaged,   // blocks of a state group (worker/kv)
  kPinned,  // pinned memory, one buffer for each of kernels::kTurns: the host fills or reads the
            // one while the device is at the other
};

// How a Linear or Embed is spread over tensor-parallel ranks; the shard pass turns it into ranges
// and collectives.
enum class Parallel : uint8_t {
  kReplicated,
  kColumn,  // output features split; q, k, v by head groups, gate and up by blocks
  kRow,     // input features split; result summed over ranks
  kVocab,   // rows of the vocabulary split
};
// What a split follows.
enum class SplitUnit : uint8_t { kNone, kQueryHeads, kKvHeads, kIntermediate, kVocab };

// How a weight is put together from checkpoint tensors: parts stacked by rows; each part a row and
// column range of one tensor (the shard pass narrows the ranges). Vectors are one column wide:
// [N] is rows = N, cols = 1, and always held in float32.
struct WeightPart {
  std::string tensor = {};                   // "model.layers.0.self_attn.q_proj.weight"
  int64_t tensor_rows = 0, tensor_cols = 0;  // its whole shape in the checkpoint; [N] is [N, 1]
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
  int64_t pad_rows = 0;               // zero rows appended (vocabulary shards of equal size)
  SplitUnit unit = SplitUnit::kNone;  // what a split of its rows follows
  int64_t targets = 0;  // > 0: whole numbers; the row's index and its number give one of so many
};

enum class WeightUse : uint8_t { kMatrix, kVector, kRopeTable };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kActivation;
  DType dtype = DType::kBFloat16;
  Dim rows;
  int64_t cols = 0;
  Storage storage = Storage::kArena;
  bool zeroed = false;  // kDevice: zero before the first step
  bool passed = false;  // memory of the step's Program before this one, which has it by this name;
                        // a weight too
  bool of_context = false;  // kState: an execution context has its own, as of inputs and outputs
  WeightUse use = WeightUse::kMatrix;  // of kWeight
  std::vector<WeightPart> parts = {};  // of kWeight; empty for kRopeTable (computed)
  ValueId norm = kNoValue;  // of a matrix: a norm's weight that its columns are times once both are
                            // loaded, and that is all ones then (fold_norms)
  int group = -1;           // state group that it belongs to; -1: none
  int layer = -1;           // whose state it is; -1: none

  bool is_paged() const { return storage == Storage::kPaged; }
  // What slots keep between steps: all execution contexts of a worker share it (CG-38).
  bool is_of_slots() const {
    return kind == ValueKind::kState && storage == Storage::kDevice && !of_context;
  }
};

}  // namespace refrain::worker
