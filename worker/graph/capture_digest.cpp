#include "worker/graph/capture_digest.h"

#include "worker/device/digest.h"
#include "worker/program/printer.h"

namespace refrain::worker {
namespace {

uint64_t common_digest(const Program& program) {
  Digest digest;
  for (const Op& op : program.ops) digest.add(print_shared(program, op));
  return digest.value();
}

uint64_t own_digest(const Lowering& lowering) {
  Digest digest;
  digest.add(print(lowering.program));
  for (const int64_t offset : lowering.plan.offsets) digest.add(static_cast<uint64_t>(offset));
  return digest.value();
}

}  // namespace

void CaptureDigests::set(const Lowering& lowering, const std::vector<Piece>& pieces,
                         ipc::ManifestEntry& entry) {
  const auto [place, fresh] = programs_.try_emplace(&lowering);
  if (fresh) place->second = {common_digest(lowering.program), own_digest(lowering)};
  Digest common, own;
  for (Digest* digest : {&common, &own}) {
    digest->add(entry.mode);
    digest->add(static_cast<uint64_t>(entry.num_tokens));
    digest->add(static_cast<uint64_t>(entry.num_reqs));
    digest->add(uint64_t{entry.uniform});
    digest->add(uint64_t{entry.has_lora});
    digest->add(static_cast<uint64_t>(entry.hidden));
  }
  common.add(place->second.common);
  own.add(place->second.own);
  for (const Piece& piece : pieces) {
    const auto* captured = std::get_if<GraphPiece>(&piece);
    if (captured == nullptr) continue;
    common.add(captured->graph->digest());
    own.add(captured->graph->launch_digest());
  }
  entry.digest = common.value();
  entry.launch_digest = own.value();
}

}  // namespace refrain::worker
