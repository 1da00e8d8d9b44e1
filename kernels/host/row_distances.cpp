#include "kernels/host/row_distances.h"

#include "kernels/core/check_shapes.h"
#include "kernels/host/launcher.h"

namespace refrain::kernels {
namespace {

float widen(float value) { return value; }
float widen(BFloat16 value) { return to_float(value); }

template <class T>
void walk_rows(const RowDistancesArgs& args, Range range) {
  for (int64_t row = range.begin; row < range.end; ++row) {
    const T* got = static_cast<const T*>(args.got.data) + row * args.got.stride;
    const T* expected = static_cast<const T*>(args.expected.data) + row * args.expected.stride;
    DistanceBits bits;
    for (int32_t c = 0; c < args.cols; ++c) bits.add(widen(got[c]), widen(expected[c]));
    args.out[row] = bits.value();
  }
}

void row_distances(const RowDistancesArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  if (args.got.dtype == DType::kFloat32) {
    walk_rows<float>(args, range);
  } else {
    walk_rows<BFloat16>(args, range);
  }
}

}  // namespace

void launch_row_distances(StreamRef stream, const RowDistancesArgs& args) {
  check_shapes(args);
  launch<&row_distances>(stream, args, "row_distances");
}

}  // namespace refrain::kernels
