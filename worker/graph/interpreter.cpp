#include "worker/graph/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "runtime/base/check.h"

namespace refrain::worker {
namespace {

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
  Launch(const OpContext& context, const LaunchKey& key, const LaunchBatch* batch)
      : c_(context), key_(key), batch_(batch) {}

  const kernels::KernelTable& kernels() const { return *c_.kernels; }
  kernels::StreamRef stream() const { return c_.stream_ref; }
  Stream& device_stream() const { return *c_.stream; }
  Communicator& communicator() const { return *c_.communicator; }
  Communicator& replicas() const { return *c_.replicas; }
  void attention(const kernels::AttentionArgs& args, int group) const {
    const AttentionBackend& backend = *c_.attention[static_cast<size_t>(group)];
    // A shared prefix is in the plan of those that can read it once.
    const bool planned = cascade() && backend.plan == kernels::AttentionPlanKind::kNone &&
                         args.planned.plan != nullptr;
    (c_.kernels->*(planned ? &kernels::KernelTable::cascade_attention : backend.kernel))(
        c_.stream_ref, args);
  }
  const Program& program() const { return *c_.program; }
  bool cascade() const { return batch_ != nullptr && batch_->cascade; }
  // A graph serves steps with cascade attention and without.
  bool may_cascade() const { return batch_ == nullptr || batch_->cascade; }
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
    Rows rows{static_cast<int32_t>(dim.resolve(key_.padded)), nullptr};
    if (dim.extent != kNoExtent && dim.scale == 1 && dim.more == 0) {
      rows.live = at(c_.program->extents[static_cast<size_t>(dim.extent)].live);
    }
    return rows;
  }
  // The step's own rows where the launch is made for this step alone.
  Rows real_rows(ValueId id) const {
    if (batch_ == nullptr) return rows(id);
    return {static_cast<int32_t>(value(id).rows.resolve(batch_->live)), nullptr};
  }

  int32_t block_size() const { return c_.block_size; }
  int32_t padded_seq_len() const { return c_.padded_seq_len(); }
  int32_t uniform_query_len() const {  // 0: not uniform
    return batch_ != nullptr ? batch_->uniform_query_len : key_.uniform_query_len;
  }

 private:
  const OpContext& c_;
  const LaunchKey& key_;
  const LaunchBatch* batch_;
};

template <class O>
void launch(const Launch& l, const O& op) {
  if constexpr (requires { Definition<O>::launch(l, op); }) {
    Definition<O>::launch(l, op);
  } else {  // forms that the fuse pass rewrites; validate() refuses a Program that still has one
    REFRAIN_CHECK(false, "op {} reached the interpreter", Definition<O>::name);
  }
}

// "T8 R8": the first letter of each of the first two extents, and its padded size.
std::string sizes_text(const Program& program, const LaunchKey& key) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(program.extents.size(), 2); ++i)
    text += fmt::format(" {}{}", static_cast<char>(std::toupper(program.extents[i].name[0])),
                        key.padded[i]);
  return text;
}

}  // namespace

void launch_op(const OpContext& context, const Op& op, const LaunchKey& key,
               const LaunchBatch* batch) {
  const RangeScope range(context, [&] {
    const char* result = "";  // the last one in the arena
    for (const ValueId id : writes(op)) {
      const Value& value = context.program->value(id);
      if (value.storage == Storage::kArena) result = value.name.c_str();
    }
    return fmt::format("{} {}{}", op_name(op), result, sizes_text(*context.program, key));
  });
  const Launch l(context, key, batch);
  std::visit([&l](const auto& o) { launch(l, o); }, op);
}

void launch_ops(const OpContext& context, OpRange ops, const LaunchKey& key,
                const LaunchBatch* batch) {
  for (int i = ops.begin; i < ops.end; ++i) {
    launch_op(context, context.program->ops[static_cast<size_t>(i)], key, batch);
  }
}

void launch_op(const OpContext& context, const Op& op, const BatchDescriptor& key,
               const BatchShape* batch) {
  const LaunchBatch own = batch != nullptr ? launch_batch(*batch) : LaunchBatch();
  launch_op(context, op, launch_key(*context.program, key), batch != nullptr ? &own : nullptr);
}

void launch_ops(const OpContext& context, OpRange ops, const BatchDescriptor& key,
                const BatchShape* batch) {
  const LaunchBatch own = batch != nullptr ? launch_batch(*batch) : LaunchBatch();
  launch_ops(context, ops, launch_key(*context.program, key), batch != nullptr ? &own : nullptr);
}

}  // namespace refrain::worker
