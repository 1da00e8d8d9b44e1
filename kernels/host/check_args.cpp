#include "kernels/host/check_args.h"

#include "kernels/core/check_shapes.h"
#include "kernels/host/launcher.h"
#include "kernels/host/ops/shapes.h"
#include "kernels/host/sampling.h"
#include "runtime/base/check.h"

namespace refrain::kernels {
namespace {

void check_tiles(const char* op, const Weight& w) {
  REFRAIN_CHECK(w.dtype != DType::kBFloat16 || w.layout == WeightLayout::kRowMajor || w.k % 2 == 0,
                "{}: a tiled bfloat16 weight needs an even number of columns, not {}", op, w.k);
}

}  // namespace

void check_args(const EmbedArgs& args) {
  check_shapes(args);
  check_tiles("embed", args.table);
}

void check_args(const RmsNormArgs& args) { check_shapes(args); }
void check_args(const AddRmsNormArgs& args) { check_shapes(args); }
void check_args(const AddArgs& args) { check_shapes(args); }

void check_args(const LinearArgs& args) {
  check_shapes(args);
  check_tiles("linear", args.weight);
  REFRAIN_CHECK((args.weight.k + 15) * sizeof(float) <= kTeamScratchBytes,
                "linear: {} columns exceed a thread's scratch", args.weight.k);
}

void check_args(const SiluMulArgs& args) { check_shapes(args); }
void check_args(const RopeKvWriteArgs& args) { check_shapes(args); }

void check_args(const AttentionArgs& args) {
  check_shapes(args);
  REFRAIN_CHECK(args.q_heads / args.kv_heads <= kTileQueries,
                "attention: {} query heads over {} KV heads (at most {} each)", args.q_heads,
                args.kv_heads, kTileQueries);
  const int64_t floats = attention_scratch_floats((args.head_dim + 15) / 16 * 16);
  REFRAIN_CHECK(floats * sizeof(float) <= kTeamScratchBytes,
                "attention: head_dim {} exceeds a thread's scratch", args.head_dim);
}

void check_args(const LinearRecurrenceArgs& args) { check_shapes(args); }
void check_args(const SelectRowsArgs& args) { check_shapes(args); }

void check_args(const BestTokensArgs& args) { check_shapes(args); }

void check_args(const ScoreTokensArgs& args) { check_shapes(args); }

void check_args(const SampleArgs& args) {
  check_shapes(args);
  REFRAIN_CHECK(args.vocab_size * sizeof(Candidate) <= kTeamScratchBytes,
                "sample: a vocabulary of {} exceeds a thread's scratch", args.vocab_size);
}

}  // namespace refrain::kernels
