#pragma once
// What shape rules of ops ask of the values they name. Pure.

#include <span>
#include <string>

#include "worker/program/value.h"

namespace refrain::worker {

struct Shapes {
  std::span<const Value> values;
  int ranks = 1;     // of the tensor-parallel group
  int replicas = 1;  // that step together

  const Value& operator[](ValueId id) const { return values[static_cast<size_t>(id)]; }
  bool same_shape(ValueId a, ValueId b) const {
    const Value &x = (*this)[a], &y = (*this)[b];
    return x.rows == y.rows && x.cols == y.cols && x.dtype == y.dtype;
  }
  bool same_rows(ValueId a, ValueId b) const { return (*this)[a].rows == (*this)[b].rows; }
  // Whether `all` has, one behind another, `count` parts that are like `part`.
  bool stacks(ValueId all, int count, ValueId part) const {
    const Value &whole = (*this)[all], &one = (*this)[part];
    return whole.cols == one.cols && whole.dtype == one.dtype &&
           whole.rows.extent == one.rows.extent && whole.rows.scale == one.rows.scale * count;
  }
  // A float32 weight of `size` elements, or none.
  bool is_vector(ValueId id, int64_t size) const {
    if (id == kNoValue) return true;
    const Value& v = (*this)[id];
    return v.kind == ValueKind::kWeight && v.rows.scale == size && v.dtype == DType::kFloat32;
  }
  bool is_paged(ValueId id) const { return (*this)[id].is_paged(); }
  bool rotary_fits(int64_t rotary, int64_t head_dim, ValueId table) const {
    return rotary > 0 && rotary % 2 == 0 && rotary <= head_dim && (*this)[table].cols == rotary;
  }
};

// What a rule returns: nothing when it holds.
inline std::string expect(bool holds, const char* rule) { return holds ? "" : rule; }

}  // namespace refrain::worker
