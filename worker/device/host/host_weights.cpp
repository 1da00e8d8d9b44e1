#include "worker/device/host/host_weights.h"

#include "kernels/host/launcher.h"
#include "kernels/host/pack.h"
#include "worker/device/device.h"

namespace refrain::worker {

namespace {

constexpr int64_t kTileRows = 16;

struct UploadArgs {
  kernels::Weight weight;
  void* to;
  int64_t row_begin;
  int64_t rows;
  const void* source;
};

void upload(const UploadArgs& args, const kernels::Team& team) {
  const kernels::Weight& weight = args.weight;
  const kernels::Range share = kernels::share_of(args.rows, team, kTileRows);
  if (share.begin < share.end) {
    const auto row_bytes = weight.k * static_cast<int64_t>(size_of(weight.dtype));
    const kernels::RowMajorSource source{
        static_cast<const std::byte*>(args.source) + share.begin * row_bytes, weight.dtype,
        weight.k};
    const Status packed =
        kernels::pack_tiled16(source, share.end - share.begin, weight.k, weight.dtype, args.to,
                              args.row_begin + share.begin);
    if (!packed) throw DeviceError("upload of a weight: " + packed.error().message);
  }
}

void pad(const UploadArgs& args, const kernels::Team&) {
  kernels::pad_tiled16(args.to, args.weight.n, args.weight.k, args.weight.dtype);
}

}  // namespace

void launch_upload(kernels::StreamRef stream, const kernels::Weight& weight, void* to,
                   int64_t row_begin, int64_t rows, const void* source) {
  const bool last = row_begin + rows == weight.n;
  REFRAIN_CHECK(weight.layout == kernels::WeightLayout::kTiled16,
                "the host device stores weights in tiles of 16 rows only");
  REFRAIN_CHECK(row_begin % kTileRows == 0 && (last || rows % kTileRows == 0),
                "rows [{}, {}) of {} do not begin and end on tiles of 16", row_begin,
                row_begin + rows, weight.n);
  const UploadArgs args{weight, to, row_begin, rows, source};
  kernels::launch<upload>(stream, args, "upload_weight");
  if (last) kernels::launch<pad>(stream, args, "pad_weight", true);
}

}  // namespace refrain::worker
