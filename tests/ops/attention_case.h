#pragma once
// A paged batch for the attention and rope tests: slots with block tables of shuffled blocks, a
// cache poisoned wherever no token was written, inputs as prepare_inputs would give them.

#include <vector>

#include "tests/ops/harness.h"

namespace refrain::kernels {

struct HeadShape {
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_size = 16;
};

struct RowSpec {
  int32_t context = 0;
  int32_t query_len = 1;
};

class AttentionCase {
 public:
  // One request a row. `padded` tokens and rows follow the live ones. `wide_rows`: those of query
  // and output begin at multiples of 16 bytes, as in a model; else at any. `shared_prefix`: so many
  // tokens of all requests are those of the first, in its blocks; a multiple of the block size.
  AttentionCase(Harness& harness, HeadShape shape, DType dtype, std::vector<RowSpec> rows,
                int padded = 0, int32_t sliding_window = 0, bool wide_rows = false,
                int32_t shared_prefix = 0);

  // From now on there is a plan (attention_units.h), of a batch whose rows have `split_tokens`
  // tokens at most where they are split. `known`: the host knows how long each row is. `cascade`:
  // the first rows, up to one that is not split or begins within it, read the shared prefix once.
  // `flashinfer`: the plan of FlashInfer's kernels. Its units.
  int32_t make_plan(int32_t split_tokens, bool known = true, bool cascade = false,
                    bool flashinfer = false);

  // Query, key and value of a request's position: the same in every case (and of no other input).
  std::vector<float> query(int32_t request, int32_t position) const;
  std::vector<float> key(int32_t request, int32_t position) const;
  std::vector<float> value(int32_t request, int32_t position) const;

  // Runs attention; [live tokens, q_heads * head_dim]. Checks that padded tokens hold zeros.
  std::vector<float> run(Kernel<AttentionArgs> KernelTable::*kernel = &KernelTable::attention);
  // The same by a kernel of no table of the harness.
  std::vector<float> run_kernel(Kernel<AttentionArgs> kernel);
  // The two parts of run: the launch into a poisoned output, and what it wrote.
  void launch(Kernel<AttentionArgs> KernelTable::*kernel);
  std::vector<float> output();
  // The same in double precision.
  std::vector<double> expected() const;
  int64_t cols() const { return int64_t{shape_.q_heads} * shape_.head_dim; }
  const AttentionArgs& args() const { return args_; }
  int64_t cache_rows() const;  // of head_dim elements

 private:
  void launch(Kernel<AttentionArgs> kernel, int gap);  // between rows of the output
  void share_keys();
  std::vector<float> draw(int32_t kind, int32_t request, int32_t position, int32_t heads) const;
  void put_cache();

  Harness& harness_;
  HeadShape shape_;
  DType dtype_;
  std::vector<RowSpec> rows_;
  int padded_;
  bool wide_rows_;
  int32_t shared_prefix_;
  int32_t max_blocks_;
  std::vector<int32_t> block_table_;  // [rows + padded + 1, max_blocks]
  int32_t live_tokens_ = 0;
  AttentionArgs args_;
};

}  // namespace refrain::kernels
