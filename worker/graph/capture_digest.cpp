#include "worker/graph/capture_digest.h"

#include "worker/device/digest.h"
#include "worker/program/printer.h"

namespace refrain::worker {
namespace {

// Takes out of an op what a rank has for itself: heads, vocabulary, and what rank 0 alone adds.
struct ForgetShard {
  template <class T>
  void operator()(T& op) const {
    if constexpr (requires { op.rope, op.attention; }) {
      (*this)(op.rope);
      (*this)(op.attention);
    }
    if constexpr (requires { op.q_heads; }) op.q_heads = 0;
    if constexpr (requires { op.kv_heads; }) op.kv_heads = 0;
    if constexpr (requires { op.heads; }) op.heads = 0;
    if constexpr (requires { op.vocab_begin; }) op.vocab_begin = op.vocab_end = 0;
    if constexpr (requires { op.first_token; }) op.first_token = op.num_tokens = 0;
    if constexpr (requires { op.bias; }) op.bias = op.residual = kNoValue;
  }
};

uint64_t common_digest(Program program) {
  for (Value& value : program.values) {
    value.rows = Dim::constant(0);
    value.cols = 0;
  }
  Digest digest;
  for (Op& op : program.ops) {
    std::visit(ForgetShard{}, op);
    digest.add(print(program, op));
  }
  return digest.value();
}

uint64_t own_digest(const Lowering& lowering) {
  Digest digest;
  digest.add(print(lowering.program));
  for (const int64_t offset : lowering.plan.offsets) digest.add(static_cast<uint64_t>(offset));
  return digest.value();
}

}  // namespace

void CaptureDigests::set(const Lowering& lowering, const Executable& executable,
                         ipc::ManifestEntry& entry) {
  const auto [place, fresh] = programs_.try_emplace(&lowering);
  if (fresh) place->second = {common_digest(lowering.program), own_digest(lowering)};
  Digest common, own;
  for (Digest* digest : {&common, &own}) {
    digest->add(entry.mode);
    digest->add(static_cast<uint64_t>(entry.num_tokens));
    digest->add(static_cast<uint64_t>(entry.num_reqs));
    digest->add(uint64_t{entry.uniform});
  }
  common.add(place->second.common);
  own.add(place->second.own);
  for (const Piece& piece : executable.pieces) {
    const auto* captured = std::get_if<GraphPiece>(&piece);
    if (captured == nullptr) continue;
    common.add(captured->graph->digest());
    own.add(captured->graph->launch_digest());
  }
  entry.digest = common.value();
  entry.launch_digest = own.value();
}

}  // namespace refrain::worker
