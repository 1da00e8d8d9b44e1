#include "worker/graph/interpreter.h"

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

// Of a uniform batch; else 0.
template <class Batch>
int32_t query_len(const Batch& batch) {
  return batch.uniform ? batch.num_tokens / batch.num_reqs : 0;
}

using kernels::Matrix;
using kernels::Rows;

// The address of a value, of whatever type the kernel's argument has.
struct Pointer {
  void* data;
  template <class T>
  operator T*() const {  // NOLINT(google-explicit-constructor): that is what it is for
    return static_cast<T*>(data);
  }
};

// What the definitions of ops (worker/program/ops) launch through: from the values of an op to its
// kernel's arguments. An absent operand (kNoValue) is null.
class Launch {
 public:
  Launch(const OpContext& context, const BatchDescriptor& key, const BatchShape* batch)
      : c_(context), padded_(padded_sizes(*context.program, key)), in_step_(batch != nullptr) {
    if (in_step_) real_ = {batch->num_tokens, batch->num_reqs, batch->num_samples};
    cascade_ = in_step_ && batch->cascade;
    uniform_query_len_ = in_step_ ? query_len(*batch) : query_len(key);
  }

  const kernels::KernelTable& kernels() const { return *c_.kernels; }
  kernels::StreamRef stream() const { return c_.stream_ref; }
  Stream& device_stream() const { return *c_.stream; }
  Communicator& communicator() const { return *c_.communicator; }
  void attention(const kernels::AttentionArgs& args, int group) const {
    const AttentionBackend& backend = *c_.attention[static_cast<size_t>(group)];
    // A shared prefix is in the plan of those that can read it once.
    const bool planned = cascade_ && backend.plan == kernels::AttentionPlanKind::kNone &&
                         args.planned.plan != nullptr;
    (c_.kernels->*(planned ? &kernels::KernelTable::planned_attention : backend.kernel))(
        c_.stream_ref, args);
  }
  const Program& program() const { return *c_.program; }
  bool cascade() const { return cascade_; }
  kernels::PeerSum peer_sum(int32_t place, Rows rows) const {
    return c_.communicator->peer_sum(*c_.stream, place, rows);
  }

  const Value& value(ValueId id) const { return c_.program->value(id); }
  int32_t cols(ValueId id) const { return static_cast<int32_t>(value(id).cols); }
  Pointer at(ValueId id, uint32_t turn = 0) const {
    return {id == kNoValue ? nullptr : c_.addresses[static_cast<size_t>(id)][turn]};
  }
  Matrix matrix(ValueId id) const {
    if (id == kNoValue) return {};
    const Value& v = value(id);
    return {at(id), v.dtype, v.cols};
  }
  const kernels::Weight& weight(ValueId id) const {
    return c_.weights->by_value[static_cast<size_t>(id)].matrix;
  }
  const float* vector(ValueId id) const { return at(id); }

  // Those of the key, and of them the live ones as counted on the device.
  Rows rows(ValueId id) const {
    const Dim& dim = value(id).rows;
    Rows rows{static_cast<int32_t>(dim.resolve(padded_)), nullptr};
    if (dim.extent != kNoExtent && dim.scale == 1 && dim.more == 0) {
      rows.live = at(c_.program->extents[static_cast<size_t>(dim.extent)].live);
    }
    return rows;
  }
  // The step's own rows where the launch is made for this step alone.
  Rows real_rows(ValueId id) const {
    if (!in_step_) return rows(id);
    return {static_cast<int32_t>(value(id).rows.resolve(real_)), nullptr};
  }

  int32_t block_size() const { return c_.block_size; }
  int32_t padded_seq_len() const { return c_.padded_seq_len(); }
  int32_t uniform_query_len() const { return uniform_query_len_; }  // 0: not uniform

 private:
  const OpContext& c_;
  ExtentSizes padded_;
  ExtentSizes real_{};
  bool in_step_, cascade_ = false;
  int32_t uniform_query_len_ = 0;
};

template <class O>
void launch(const Launch& l, const O& op) {
  if constexpr (requires { Definition<O>::launch(l, op); }) {
    Definition<O>::launch(l, op);
  } else {  // forms that the fuse pass rewrites; validate() refuses a Program that still has one
    REFRAIN_CHECK(false, "op {} reached the interpreter", Definition<O>::name);
  }
}

}  // namespace

void launch_op(const OpContext& context, const Op& op, const BatchDescriptor& key,
               const BatchShape* batch) {
  const RangeScope range(context, [&] {
    const char* result = "";  // the last one in the arena
    for (const ValueId id : writes(op)) {
      const Value& value = context.program->value(id);
      if (value.storage == Storage::kArena) result = value.name.c_str();
    }
    return fmt::format("{} {} T{} R{}", op_name(op), result, key.num_tokens, key.num_reqs);
  });
  const Launch l(context, key, batch);
  std::visit([&l](const auto& o) { launch(l, o); }, op);
}

void launch_ops(const OpContext& context, OpRange ops, const BatchDescriptor& key,
                const BatchShape* batch) {
  for (int i = ops.begin; i < ops.end; ++i) {
    launch_op(context, context.program->ops[static_cast<size_t>(i)], key, batch);
  }
}

}  // namespace refrain::worker
