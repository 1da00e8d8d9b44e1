#include "kernels/host/draft_head.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/host/launcher.h"

namespace refrain::kernels {
namespace {

void next_tokens(const NextTokensArgs& args, const Team& team) {
  const int32_t live = live_rows(args.rows);
  const Range rows = share_of(live, team);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int32_t* history = args.history + int64_t{args.row_slot[row]} * args.history_cols;
    for (int32_t t = args.query_start[row]; t < args.query_start[row + 1]; ++t) {
      const int32_t next = args.positions[t] + 1;
      args.out[t] = next < args.history_cols ? history[next] : 0;
    }
  }
  if (team.rank != 0) return;
  std::fill(args.out + args.query_start[live], args.out + args.tokens.padded, 0);
}

char* row_of(const Matrix& matrix, int64_t row) {
  const auto element = static_cast<int64_t>(size_of(matrix.dtype));
  return static_cast<char*>(matrix.data) + row * matrix.stride * element;
}

void concat(const ConcatArgs& args, const Team& team) {
  const Range rows = share_of(live_rows(args.rows), team);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    char* to = row_of(args.out, row);
    for (int32_t i = 0; i < kMaxParts; ++i) {
      if (args.cols[i] == 0) continue;
      const size_t bytes = static_cast<size_t>(args.cols[i]) * size_of(args.out.dtype);
      std::memcpy(to, row_of(args.parts[i], row), bytes);
      to += bytes;
    }
  }
}

void map_logits(const MapLogitsArgs& args, const Team& team) {
  const Range rows = share_of(live_rows(args.rows), team);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const auto* in = reinterpret_cast<const float*>(row_of(args.in, row));
    auto* out = reinterpret_cast<float*>(row_of(args.out, row));
    std::fill_n(out, args.vocab, -std::numeric_limits<float>::infinity());
    for (int32_t i = 0; i < args.small; ++i) {
      const int32_t token = i + static_cast<int32_t>(args.offset[i]);
      if (token >= 0 && token < args.vocab) out[token] = in[i];
    }
  }
}

}  // namespace

void launch_next_tokens(StreamRef stream, const NextTokensArgs& args) {
  launch<&next_tokens>(stream, args, "next_tokens", args.rows.padded == 1);
}

void launch_concat(StreamRef stream, const ConcatArgs& args) {
  launch<&concat>(stream, args, "concat", args.rows.padded == 1);
}

void launch_map_logits(StreamRef stream, const MapLogitsArgs& args) {
  launch<&map_logits>(stream, args, "map_logits", args.rows.padded == 1);
}

}  // namespace refrain::kernels
