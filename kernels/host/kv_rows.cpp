#include "kernels/host/kv_rows.h"

#include <cstring>

#include "kernels/host/launcher.h"

namespace refrain::kernels {
namespace {

void kv_rows(const KvRowsArgs& args, const Team& team) {
  const int64_t units = args.units, unit = args.unit_bytes;
  const Range range = share_of(args.tokens, team);
  for (int64_t t = range.begin; t < range.end; ++t) {
    const int64_t block = args.kv_slots[t] / args.block_size;
    const int64_t offset = args.kv_slots[t] % args.block_size;
    for (int64_t u = 0; u < units; ++u) {
      std::byte* cached =
          args.cache + block * args.block_bytes + (u * args.block_size + offset) * unit;
      std::byte* dense = args.dense + (t * units + u) * unit;
      std::memcpy(args.restore ? cached : dense, args.restore ? dense : cached,
                  static_cast<size_t>(unit));
    }
  }
}

}  // namespace

void launch_kv_rows(StreamRef stream, const KvRowsArgs& args) {
  launch<&kv_rows>(stream, args, "kv_rows");
}

}  // namespace refrain::kernels
