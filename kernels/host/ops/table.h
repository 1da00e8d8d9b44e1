#pragma once
// The kernel table of one instruction set: each slot checks its arguments and launches its op. Ops
// that share rows among threads run on one thread when there is one row.

#include "kernels/host/kv_rows.h"
#include "kernels/host/ops/attention.h"
#include "kernels/host/ops/elementwise.h"
#include "kernels/host/ops/embed.h"
#include "kernels/host/ops/linear.h"
#include "kernels/host/ops/norm.h"
#include "kernels/host/ops/rope_kv_write.h"
#include "kernels/host/ops/sample.h"
#include "kernels/host/prepare_inputs.h"
#include "kernels/host/row_distances.h"

namespace refrain::kernels {

template <class S>
KernelTable make_table() {
  KernelTable table;
  table.prepare_inputs = &launch_prepare_inputs;
  table.kv_rows = &launch_kv_rows;
  table.row_distances = &launch_row_distances;
  table.embed = [](StreamRef stream, const EmbedArgs& args) {
    check_args(args);
    launch<&embed<S>>(stream, args, "embed", args.rows.padded == 1);
  };
  table.rms_norm = [](StreamRef stream, const RmsNormArgs& args) {
    check_args(args);
    launch<&rms_norm<S>>(stream, args, "rms_norm", args.rows.padded == 1);
  };
  table.add_rms_norm = [](StreamRef stream, const AddRmsNormArgs& args) {
    check_args(args);
    launch<&add_rms_norm<S>>(stream, args, "add_rms_norm", args.rows.padded == 1);
  };
  table.add = [](StreamRef stream, const AddArgs& args) {
    check_args(args);
    launch<&add<S>>(stream, args, "add", args.rows.padded == 1);
  };
  table.linear = [](StreamRef stream, const LinearArgs& args) {
    check_args(args);
    launch<&linear<S>>(stream, args, "linear");
  };
  table.silu_mul = [](StreamRef stream, const SiluMulArgs& args) {
    check_args(args);
    launch<&silu_mul<S>>(stream, args, "silu_mul", args.rows.padded == 1);
  };
  table.rope_kv_write = [](StreamRef stream, const RopeKvWriteArgs& args) {
    check_args(args);
    launch<&rope_kv_write<S>>(stream, args, "rope_kv_write", args.rows.padded == 1);
  };
  table.attention = [](StreamRef stream, const AttentionArgs& args) {
    check_args(args);
    launch<&attention<S>>(stream, args, "attention");
  };
  table.select_rows = [](StreamRef stream, const SelectRowsArgs& args) {
    check_args(args);
    launch<&select_rows<S>>(stream, args, "select_rows", args.rows.padded == 1);
  };
  table.best_tokens = [](StreamRef stream, const BestTokensArgs& args) {
    check_args(args);
    launch<&best_tokens<S>>(stream, args, "best_tokens");
  };
  table.sample = [](StreamRef stream, const SampleArgs& args) {
    check_args(args);
    launch<&sample<S>>(stream, args, "sample", args.rows.padded == 1);
  };
  return table;
}

}  // namespace refrain::kernels
