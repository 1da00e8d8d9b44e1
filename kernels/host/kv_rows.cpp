#include "kernels/host/kv_rows.h"

#include <cstring>

#include "kernels/host/launcher.h"

namespace refrain::kernels {
namespace {

void kv_rows(const KvRowsArgs& args, const Team& team) {
  const int64_t heads = int64_t{2} * args.kv_heads, head = args.head_bytes;
  const Range range = share_of(args.tokens, team);
  for (int64_t t = range.begin; t < range.end; ++t) {
    const int64_t block = args.kv_slots[t] / args.block_size;
    const int64_t offset = args.kv_slots[t] % args.block_size;
    for (int64_t h = 0; h < heads; ++h) {
      std::byte* cached = args.cache + ((block * heads + h) * args.block_size + offset) * head;
      std::byte* dense = args.dense + (t * heads + h) * head;
      std::memcpy(args.restore ? cached : dense, args.restore ? dense : cached,
                  static_cast<size_t>(head));
    }
  }
}

}  // namespace

void launch_kv_rows(StreamRef stream, const KvRowsArgs& args) {
  launch<&kv_rows>(stream, args, "kv_rows");
}

}  // namespace refrain::kernels
