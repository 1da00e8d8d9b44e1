// The backend FLASHINFER: FlashInfer's batch kernel for a paged cache (FlashAttention-2's algorithm
// on mma.sync), decode in tiles of 16 queries and prefill in tiles of 64, by a plan made on the
// host as FlashInfer's own (FlashinferPlan); then FlashInfer's merge of the parts of split keys.
// Where each row has one token, launch shapes follow from the counts alone and a graph may hold
// them. Decode is bound by memory, prefill by arithmetic.

#pragma nv_diagnostic push
#pragma nv_diag_suppress 20012  // an annotation without effect in CUTLASS; in our code an error
#include <flashinfer/attention/cascade.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>
#pragma nv_diagnostic pop

#include "kernels/core/attention_units.h"
#include "kernels/cuda/clear_padding.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

using Element = __nv_bfloat16;
using Paged = flashinfer::paged_kv_t<Element, int32_t>;
using Variant = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/true,
                                             /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;

// Lengths are the device's own; the names are FlashInfer's.
struct Params : flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t> {
  const int32_t* starts = nullptr;
  const int32_t* lengths = nullptr;
  __host__ __device__ uint32_t get_qo_len(uint32_t row) const {
    return static_cast<uint32_t>(starts[row + 1] - starts[row]);
  }
  __host__ __device__ uint32_t get_kv_len(uint32_t row) const {
    return static_cast<uint32_t>(lengths[row]);
  }
};

// A plan's arrays are the device's memory, which FlashInfer's parameters name without const.
template <class T>
T* in_plan(const AttentionArgs& args, int32_t at) {
  return reinterpret_cast<T*>(const_cast<int32_t*>(args.planned.plan) + at);
}

Params params_of(const AttentionArgs& args) {
  const FlashinferPlan at(args.planned.shape);
  const int64_t page = int64_t{args.block_size} * args.head_dim;
  const int64_t strides[3] = {2 * args.kv_heads * page, page, args.head_dim};
  auto* cache = static_cast<Element*>(const_cast<void*>(args.cache));
  Params p;
  p.paged_kv = Paged(static_cast<uint32_t>(args.kv_heads), static_cast<uint32_t>(args.block_size),
                     static_cast<uint32_t>(args.head_dim), static_cast<uint32_t>(args.reqs.padded),
                     flashinfer::QKVLayout::kHND, cache, cache + args.kv_heads * page, strides,
                     const_cast<int32_t*>(args.block_table), in_plan<int32_t>(args, at.page_start),
                     /*last_page_len=*/nullptr);
  p.q = static_cast<Element*>(args.q.data);
  p.q_indptr = const_cast<int32_t*>(args.inputs.query_start);
  p.o = static_cast<Element*>(args.out.data);
  p.group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(args.q_heads / args.kv_heads));
  p.num_qo_heads = static_cast<uint32_t>(args.q_heads);
  p.q_stride_n = static_cast<int32_t>(args.q.stride);
  p.q_stride_h = args.head_dim;
  p.window_left = args.sliding_window > 0 ? args.sliding_window - 1 : -1;
  p.sm_scale = args.scale;
  p.rope_rcp_scale = p.rope_rcp_theta = 1.0f;
  p.request_indices = in_plan<int32_t>(args, at.row);
  p.qo_tile_indices = in_plan<int32_t>(args, at.query_tile);
  p.kv_tile_indices = in_plan<int32_t>(args, at.key_tile);
  p.merge_indptr = in_plan<int32_t>(args, at.merge_start);
  p.o_indptr = in_plan<int32_t>(args, at.out_start);
  p.block_valid_mask = in_plan<bool>(args, at.valid);
  p.kv_chunk_size_ptr = in_plan<int32_t>(args, at.key_chunk);
  p.total_num_rows = in_plan<uint32_t>(args, at.num_tokens);
  p.max_total_num_rows = static_cast<uint32_t>(args.tokens.padded);
  p.starts = args.inputs.query_start;
  p.lengths = args.inputs.seq_lens;
  return p;
}

template <int kDim, int kTile>
void run(StreamRef stream, const AttentionArgs& args, const Params& params, bool splits) {
  const int64_t rows = int64_t{args.planned.shape.max_parts()} * args.q_heads;
  auto* sums = splits ? reinterpret_cast<Element*>(args.planned.parts) : nullptr;
  float* logs = splits ? args.planned.parts + rows * kDim : nullptr;
  const cudaError_t status = flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      /*SAME_KV_STRIDES=*/true, kTile, kDim, kDim, flashinfer::PosEncodingMode::kNone,
      /*USE_FP16_QK_REDUCTION=*/false, flashinfer::MaskMode::kCausal, Variant, Params>(
      params, sums, logs, /*enable_pdl=*/false, launcher(stream).stream);
  check_cuda(status, "flashinfer_attention");
}

template <int kDim>
void run(StreamRef stream, const AttentionArgs& args) {
  const AttentionPlanShape& shape = args.planned.shape;
  const bool one_each = args.tokens.padded == args.reqs.padded;
  const bool small = FlashinferPlan::tile(shape, one_each) == 16;
  const int64_t tiles = int64_t{args.tokens.padded} * shape.group / 64 + args.reqs.padded;
  Params params = params_of(args);
  params.padded_batch_size =
      static_cast<uint32_t>(one_each ? int64_t{args.reqs.padded} * kMaxPlanParts : tiles);
  if (small) {
    run<kDim, 16>(stream, args, params, one_each);
  } else {
    run<kDim, 64>(stream, args, params, one_each);
  }
}

}  // namespace

void flashinfer_attention(StreamRef stream, const AttentionArgs& args) {
  launch_clear_padding(stream, args);
  if (args.head_dim == 64) {
    run<64>(stream, args);
  } else {
    run<128>(stream, args);
  }
}

}  // namespace refrain::kernels
