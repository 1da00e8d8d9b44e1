#include "worker/comm/host/collectives.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace refrain::worker {

namespace {

using kernels::Range;
using kernels::Team;

constexpr int64_t kGrain = 64;  // elements; a thread's share begins on a cache line

int64_t live_rows_of(const ExchangeArgs& args) {
  return std::clamp<int64_t>(kernels::live_rows(args.whole) - args.row_begin, 0, args.rows);
}

// Calls visit(row, first column, columns, offset in the slot in elements) for the parts of rows
// that make up this thread's share.
template <class Visit>
void for_each_run(const ExchangeArgs& args, const Team& team, Visit visit) {
  const Range share = kernels::share_of(live_rows_of(args) * args.cols, team, kGrain);
  for (int64_t at = share.begin; at < share.end;) {
    const int64_t row = at / args.cols;
    const int64_t col = at % args.cols;
    const int64_t count = std::min(args.cols - col, share.end - at);
    visit(row, col, count, at);
    at += count;
  }
}

std::byte* element(const kernels::Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<std::byte*>(matrix.data) +
         (row * matrix.stride + col) * static_cast<int64_t>(size_of(matrix.dtype));
}

void put(const ExchangeArgs& args, const Team& team) {
  if (args.collective == Collective::kBroadcast && args.root != args.group->rank()) return;
  std::byte* slot = args.group->slot_to_fill();
  const size_t width = size_of(args.data.dtype);
  for_each_run(args, team, [&](int64_t row, int64_t col, int64_t count, int64_t at) {
    std::memcpy(slot + static_cast<size_t>(at) * width, element(args.data, row, col),
                static_cast<size_t>(count) * width);
  });
}

void meet(const ExchangeArgs& args, const Team&) {
  args.group->meet({args.collective, args.data.dtype, args.root,
                    static_cast<uint64_t>(live_rows_of(args)), static_cast<uint64_t>(args.cols)});
}

void load_float(const std::byte* from, DType dtype, int64_t count, float* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* values = reinterpret_cast<const BFloat16*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(values[i]);
}

void store_float(const float* from, DType dtype, int64_t count, std::byte* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* values = reinterpret_cast<BFloat16*>(to);
  for (int64_t i = 0; i < count; ++i) values[i] = to_bfloat16(from[i]);
}

// `place(row, col)`: where that element of the sum goes.
template <class Place>
void sum_into(const ExchangeArgs& args, const Team& team, Place place) {
  constexpr int64_t kBlock = 512;
  alignas(64) float total[kBlock];
  alignas(64) float part[kBlock];
  const HostGroup& group = *args.group;
  const DType dtype = args.data.dtype;
  const auto width = static_cast<int64_t>(size_of(dtype));
  for_each_run(args, team, [&](int64_t row, int64_t col, int64_t count, int64_t at) {
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t block = std::min(kBlock, count - begin);
      load_float(group.slot_of(0) + (at + begin) * width, dtype, block, total);
      for (int rank = 1; rank < group.size(); ++rank) {
        load_float(group.slot_of(rank) + (at + begin) * width, dtype, block, part);
        for (int64_t i = 0; i < block; ++i) total[i] += part[i];
      }
      store_float(total, dtype, block, place(row, col + begin));
    }
  });
}

void sum(const ExchangeArgs& args, const Team& team) {
  sum_into(args, team, [&](int64_t row, int64_t col) { return element(args.data, row, col); });
}

void sum_own(const ExchangeArgs& args, const Team& team) {
  if (args.root != args.group->rank()) return;
  const auto width = static_cast<int64_t>(size_of(args.data.dtype));
  sum_into(args, team, [&](int64_t row, int64_t col) {
    return args.out + row * args.out_row_bytes + col * width;
  });
}

void gather(const ExchangeArgs& args, const Team& team) {
  const auto width = static_cast<int64_t>(size_of(args.data.dtype));
  for_each_run(args, team, [&](int64_t row, int64_t col, int64_t count, int64_t at) {
    for (int rank = 0; rank < args.group->size(); ++rank) {
      std::memcpy(args.out + rank * args.out_rank_bytes + row * args.out_row_bytes + col * width,
                  args.group->slot_of(rank) + at * width, static_cast<size_t>(count * width));
    }
  });
}

void receive(const ExchangeArgs& args, const Team& team) {
  if (args.root == args.group->rank()) return;
  const auto width = static_cast<int64_t>(size_of(args.data.dtype));
  for_each_run(args, team, [&](int64_t row, int64_t col, int64_t count, int64_t at) {
    std::memcpy(element(args.data, row, col), args.group->slot_of(args.root) + at * width,
                static_cast<size_t>(count * width));
  });
}

void launch_exchange(kernels::StreamRef stream, const ExchangeArgs& args) {
  switch (args.collective) {
    case Collective::kAllReduce:
      kernels::launch<put>(stream, args, "all_reduce.put");
      kernels::launch<meet>(stream, args, "all_reduce.meet", true);
      kernels::launch<sum>(stream, args, "all_reduce.sum");
      return;
    case Collective::kAllGather:
      kernels::launch<put>(stream, args, "all_gather.put");
      kernels::launch<meet>(stream, args, "all_gather.meet", true);
      kernels::launch<gather>(stream, args, "all_gather.take");
      return;
    case Collective::kReduceScatter:
      kernels::launch<put>(stream, args, "reduce_scatter.put");
      kernels::launch<meet>(stream, args, "reduce_scatter.meet", true);
      kernels::launch<sum_own>(stream, args, "reduce_scatter.sum");
      return;
    case Collective::kBroadcast:
      kernels::launch<put>(stream, args, "broadcast.put");
      kernels::launch<meet>(stream, args, "broadcast.meet", true);
      kernels::launch<receive>(stream, args, "broadcast.take");
      return;
    case Collective::kBarrier:
      kernels::launch<meet>(stream, args, "barrier.meet", true);
      return;
  }
}

}  // namespace

void launch_exchanges(kernels::StreamRef stream, ExchangeArgs whole) {
  const auto width = static_cast<int64_t>(size_of(whole.data.dtype));
  const auto slot_elements = static_cast<int64_t>(HostGroup::kSlotBytes) / width;
  const int64_t max_cols = std::min(whole.cols, slot_elements);
  const int64_t max_rows = std::max<int64_t>(1, slot_elements / std::max<int64_t>(1, max_cols));
  for (int64_t row = 0; row < whole.rows; row += max_rows) {
    for (int64_t col = 0; col < whole.cols; col += max_cols) {
      ExchangeArgs part = whole;
      part.row_begin = static_cast<int32_t>(row);
      part.rows = static_cast<int32_t>(std::min(max_rows, whole.rows - row));
      part.cols = std::min(max_cols, whole.cols - col);
      part.data.data = element(whole.data, row, col);
      if (whole.out != nullptr) part.out += row * whole.out_row_bytes + col * width;
      launch_exchange(stream, part);
    }
  }
}

}  // namespace refrain::worker
