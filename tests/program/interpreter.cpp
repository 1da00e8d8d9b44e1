#include "tests/program/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/base/check.h"
#include "worker/weights/rope_table.h"
#include "worker/weights/weight_source.h"

namespace refrain::worker::test {

Interpreter::Interpreter(const Program& program, const ModelConfig& config, Storage storage,
                         int64_t max_tokens, int64_t max_requests)
    : program_(program),
      storage_(storage),
      plan_(plan_memory(program, {max_tokens, max_requests})),
      values_(program.values.size()) {
  load_weights(config);
}

void Interpreter::load_weights(const ModelConfig& config) {
  const auto source = dummy_weights(7);
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Value& value = program_.values[i];
    if (value.kind != ValueKind::kWeight) continue;
    std::vector<float>& out = values_[i];
    out.assign(static_cast<size_t>(value.rows.scale * value.cols), 0.0f);
    if (value.use == WeightUse::kRopeTable)
      fill_rope_table(config, 0, value.rows.scale, value.cols, out.data());
    int64_t row = 0;
    for (const WeightPart& part : value.parts) {
      const int64_t held = part.row_end - part.row_begin;
      const Status read =
          source->read(part, part.row_begin, held, DType::kFloat32, out.data() + row * value.cols);
      REFRAIN_CHECK(read.has_value(), "dummy weights always read");
      row += held + part.pad_rows;
    }
  }
  for (size_t i = 0; i < program_.values.size(); ++i) {
    if (program_.values[i].norm == kNoValue) continue;
    std::vector<float>& norm = values_[static_cast<size_t>(program_.values[i].norm)];
    for (size_t at = 0; at < values_[i].size(); ++at) values_[i][at] *= norm[at % norm.size()];
    std::ranges::fill(norm, 1.0f);
  }
}

void Interpreter::begin(const Step& step) {
  step_ = step;
  constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  arena_.assign(plan_.bytes / sizeof(float), kPoison);
  if (storage_ == Storage::kPlanned) return;
  for (size_t i = 0; i < program_.values.size(); ++i)
    if (plan_.offsets[i] >= 0)
      values_[i].assign(
          static_cast<size_t>(rows(static_cast<ValueId>(i)) * cols(static_cast<ValueId>(i))),
          kPoison);
}

int64_t Interpreter::rows(ValueId id) const {
  return program_.value(id).rows.resolve({step_.tokens(), step_.requests()});
}

float* Interpreter::data(ValueId id) {
  const int64_t offset = plan_.offsets[static_cast<size_t>(id)];
  if (offset >= 0 && storage_ == Storage::kPlanned) {
    REFRAIN_CHECK(program_.value(id).dtype == DType::kFloat32, "the oracle plans float32 only");
    return arena_.data() + offset / static_cast<int64_t>(sizeof(float));
  }
  return values_[static_cast<size_t>(id)].data();
}

struct RunOp {
  Interpreter& in;

  float* data(ValueId id) const { return in.data(id); }
  int64_t cols(ValueId id) const { return in.cols(id); }
  int64_t rows(ValueId id) const { return in.rows(id); }

  void operator()(const PrepareInputsOp&) const {}
  void operator()(const EmbedOp& op) const {
    const int64_t width = cols(op.out);
    for (int64_t t = 0; t < rows(op.out); ++t) {
      const int64_t id = in.step_.ids[static_cast<size_t>(t)];
      const bool held = id >= op.vocab_begin && id < op.vocab_end;
      for (int64_t i = 0; i < width; ++i)
        data(op.out)[t * width + i] =
            held ? data(op.table)[(id - op.vocab_begin) * width + i] : 0.0f;
    }
  }
  void norm(float* out, const float* from, const float* weight, int64_t count, float eps) const {
    double square = 0;
    for (int64_t i = 0; i < count; ++i) square += static_cast<double>(from[i]) * from[i];
    const double scale = 1.0 / std::sqrt(square / static_cast<double>(count) + eps);
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(from[i] * scale * weight[i]);
  }
  void operator()(const RmsNormOp& op) const {
    const int64_t group = op.group == 0 ? cols(op.in) : op.group;
    for (int64_t i = 0; i < rows(op.in) * cols(op.in); i += group)
      norm(data(op.out) + i, data(op.in) + i, data(op.weight), group, op.eps);
  }
  void operator()(const AddOp& op) const {
    for (int64_t i = 0; i < rows(op.out) * cols(op.out); ++i)
      data(op.out)[i] = data(op.a)[i] + data(op.b)[i];
  }
  void operator()(const AddRmsNormOp& op) const {
    (*this)(AddOp{.a = op.residual, .b = op.delta, .out = op.residual_out});
    (*this)(RmsNormOp{.in = op.residual_out, .weight = op.weight, .out = op.out, .eps = op.eps});
  }
  void operator()(const LinearOp& op) const {
    const int64_t n = cols(op.out), k = cols(op.in);
    for (int64_t t = 0; t < rows(op.out); ++t)
      for (int64_t j = 0; j < n; ++j) {
        double sum = op.bias == kNoValue ? 0.0 : data(op.bias)[j];
        for (int64_t i = 0; i < k; ++i)
          sum += static_cast<double>(data(op.in)[t * k + i]) * data(op.weight)[j * k + i];
        if (op.residual != kNoValue) sum += data(op.residual)[t * n + j];
        data(op.out)[t * n + j] = static_cast<float>(sum);
      }
  }
  static double silu(double x) { return x / (1.0 + std::exp(-x)); }
  void operator()(const SiluMulOp& op) const {
    const int64_t n = cols(op.out);
    for (int64_t t = 0; t < rows(op.out); ++t)
      for (int64_t j = 0; j < n; ++j) {
        const float* from = data(op.in) + t * 2 * n;
        data(op.out)[t * n + j] = static_cast<float>(silu(from[j]) * from[n + j]);
      }
  }
  void operator()(const SiluGateOp& op) const {
    for (int64_t i = 0; i < rows(op.out) * cols(op.out); ++i)
      data(op.out)[i] = static_cast<float>(silu(data(op.gate)[i]) * data(op.up)[i]);
  }
  void rotate(float* head, const float* table, int64_t rotary) const {
    for (int64_t i = 0; i < rotary / 2; ++i) {
      const double c = table[i], s = table[rotary / 2 + i];
      const double x = head[i], y = head[rotary / 2 + i];
      head[i] = static_cast<float>(x * c - y * s);
      head[rotary / 2 + i] = static_cast<float>(y * c + x * s);
    }
  }
  const float* rope_row(ValueId table, int64_t t) const {
    return data(table) + in.step_.positions[static_cast<size_t>(t)] * cols(table);
  }
  void operator()(const RopeOp& op) const {
    for (int64_t t = 0; t < rows(op.out); ++t)
      for (int64_t h = 0; h < op.heads; ++h) {
        const int64_t at = (t * op.heads + h) * op.head_dim;
        std::copy_n(data(op.in) + at, op.head_dim, data(op.out) + at);
        rotate(data(op.out) + at, rope_row(op.table, t), op.rotary_dim);
      }
  }
  void write(ValueId cache, int64_t t, const float* k, const float* v, int64_t width) const {
    std::vector<float> entry(k, k + width);
    entry.insert(entry.end(), v, v + width);
    in.caches_[cache][in.step_.slots[static_cast<size_t>(t)]] = std::move(entry);
  }
  void operator()(const KvWriteOp& op) const {
    const int64_t width = op.kv_heads * op.head_dim;
    for (int64_t t = 0; t < rows(op.k); ++t)
      write(op.cache, t, data(op.k) + t * width, data(op.v) + t * width, width);
  }
  void operator()(const RopeKvWriteOp& op) const {
    const int64_t width = (op.q_heads + 2 * op.kv_heads) * op.head_dim;
    if (data(op.out) != data(op.qkv)) std::copy_n(data(op.qkv), rows(op.qkv) * width, data(op.out));
    rotate_and_write(op, rows(op.out), data(op.out));
  }
  void rotate_and_write(const RopeKvWriteOp& op, int64_t tokens, float* qkv) const {
    const int64_t width = (op.q_heads + 2 * op.kv_heads) * op.head_dim;
    for (int64_t t = 0; t < tokens; ++t) {
      float* row = qkv + t * width;
      for (int64_t h = 0; h < op.q_heads + op.kv_heads; ++h) {
        float* head = row + h * op.head_dim;
        const ValueId weight = h < op.q_heads ? op.q_norm : op.k_norm;
        if (weight != kNoValue) norm(head, head, data(weight), op.head_dim, op.eps);
        rotate(head, rope_row(op.table, t), op.rotary_dim);
      }
      const float* k = row + op.q_heads * op.head_dim;
      const int64_t kv_width = op.kv_heads * op.head_dim;
      write(op.cache, t, k, k + kv_width, kv_width);
    }
  }
  void operator()(const AttentionOp& op) const { attend_all(op, data(op.q), cols(op.q), op.cache); }
  void operator()(const RopeAttentionOp& op) const {
    RopeKvWriteOp rope = op.rope;
    const int64_t width = cols(rope.qkv);
    std::vector<float> rotated(data(rope.qkv), data(rope.qkv) + rows(rope.qkv) * width);
    rotate_and_write(rope, rows(rope.qkv), rotated.data());
    attend_all(op.attention, rotated.data(), width, rope.cache);
  }
  void operator()(const FusedLinearOp& op) const {
    const int64_t n = cols(op.out), k = cols(op.in), count = rows(op.out);
    std::vector<float> x(data(op.in), data(op.in) + count * k);
    if (op.delta != kNoValue) {
      for (int64_t i = 0; i < count * k; ++i) x[static_cast<size_t>(i)] += data(op.delta)[i];
      std::copy(x.begin(), x.end(), data(op.sum_out));
    }
    const std::vector<float> ones(op.unit_norm ? static_cast<size_t>(k) : 0, 1.0f);
    for (int64_t t = 0; t < count && op.norm != kNoValue; ++t) {
      float* row = x.data() + t * k;
      norm(row, row, op.unit_norm ? ones.data() : data(op.norm), k, op.eps);
    }
    const auto dot = [&](int64_t t, int64_t j) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[static_cast<size_t>(t * k + i)]) * data(op.weight)[j * k + i];
      return sum;
    };
    std::vector<float> out;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t j = 0; j < n; ++j) {
        double value = dot(t, j);
        if (op.silu_mul) value = silu(value) * dot(t, n + j);
        if (op.bias != kNoValue) value += data(op.bias)[j];
        if (op.residual != kNoValue) value += data(op.residual)[t * n + j];
        out.push_back(static_cast<float>(value));
      }
    std::copy(out.begin(), out.end(), data(op.out));
    for (int64_t t = 0; op.best != kNoValue && t < count; ++t) {
      const float* row = data(op.out) + t * n;
      std::fill_n(data(op.best) + t * cols(op.best), cols(op.best), -1.0f);
      data(op.best)[t * cols(op.best) + 1] =
          static_cast<float>(std::max_element(row, row + n) - row);
    }
  }
  void attend_all(const AttentionOp& op, const float* q, int64_t q_width, ValueId cache) const {
    const int64_t dim = op.head_dim;
    for (int64_t t = 0; t < rows(op.out); ++t)
      for (int64_t h = 0; h < op.q_heads; ++h)
        attend(op, cache, t, h / (op.q_heads / op.kv_heads), q + t * q_width + h * dim,
               data(op.out) + (t * op.q_heads + h) * dim);
  }
  void attend(const AttentionOp& op, ValueId cache, int64_t t, int64_t kv_head, const float* q,
              float* out) const {
    const auto& slots =
        in.step_.row_slots[static_cast<size_t>(in.step_.row[static_cast<size_t>(t)])];
    const int64_t dim = op.head_dim;
    std::vector<double> sums(static_cast<size_t>(dim), 0.0);
    double total = 0;
    const int64_t last = in.step_.positions[static_cast<size_t>(t)];
    const int64_t first = op.sliding_window > 0 ? last - op.sliding_window + 1 : 0;
    for (int64_t p = std::max<int64_t>(first, 0); p <= last; ++p) {
      const float* k =
          in.caches_.at(cache).at(slots[static_cast<size_t>(p)]).data() + kv_head * dim;
      const float* v = k + op.kv_heads * dim;
      double score = 0;
      for (int64_t i = 0; i < dim; ++i) score += static_cast<double>(q[i]) * k[i];
      const double weight = std::exp(score * op.scale);
      total += weight;
      for (int64_t i = 0; i < dim; ++i) sums[static_cast<size_t>(i)] += weight * v[i];
    }
    for (int64_t i = 0; i < dim; ++i)
      out[i] = static_cast<float>(sums[static_cast<size_t>(i)] / total);
  }
  // States belong to rows of the step: requests are all fresh, or go on as they stand.
  void operator()(const LinearRecurrenceOp& op) const {
    const int64_t width = cols(op.out);
    for (int64_t t = 0; t < rows(op.out); ++t) {
      const auto row = in.step_.row[static_cast<size_t>(t)];
      std::vector<float>& state = in.states_[op.state][row];
      state.resize(static_cast<size_t>(width), 0.0f);
      for (int64_t c = 0; c < width; ++c) {
        float& h = state[static_cast<size_t>(c)];
        const double a = 1.0 / (1.0 + std::exp(-static_cast<double>(data(op.gate)[t * width + c])));
        h = static_cast<float>(a * h + (1.0 - a) * data(op.in)[t * width + c]);
        data(op.out)[t * width + c] = h;
      }
    }
  }
  void operator()(const SelectRowsOp& op) const {
    const int64_t width = cols(op.out);
    for (int64_t r = 0; r < rows(op.out); ++r)
      std::copy_n(data(op.in) + in.step_.logit_index[static_cast<size_t>(r)] * width, width,
                  data(op.out) + r * width);
  }
  void operator()(const SampleOp&) const {}
  void operator()(const ProposeNgramOp&) const {}
  void operator()(const LoraRowsOp&) const { REFRAIN_CHECK(false, "the runner tests adapters"); }
  void operator()(const LoraShrinkOp&) const { (*this)(LoraRowsOp{}); }
  void operator()(const LoraEmbedOp&) const { (*this)(LoraRowsOp{}); }
  void operator()(const LoraExpandOp&) const { (*this)(LoraRowsOp{}); }
  void operator()(const LoraLinearOp&) const { (*this)(LoraRowsOp{}); }
  void operator()(const AcceptDraftsOp&) const {}
  void operator()(const ProposeDraftsOp&) const {}
  void operator()(const DraftInputsOp&) const {}
  void operator()(const NextTokensOp&) const {}
  void operator()(const ConcatOp&) const {}
  void operator()(const MapLogitsOp&) const {}
  void operator()(const AllReduceOp&) const {}  // Ranks does the first two, and adds here
  void operator()(const AllReduceAddRmsNormOp& op) const {
    (*this)(AddRmsNormOp{.residual = op.residual,
                         .delta = op.delta,
                         .weight = op.weight,
                         .residual_out = op.residual_out,
                         .out = op.out,
                         .eps = op.eps});
  }
  void operator()(const AllGatherOp&) const {}
  void operator()(const GatherReplicasOp&) const {}  // no model that is served has these
  void operator()(const ReduceReplicasOp&) const {}
  void operator()(const BestTokensOp&) const {}  // tests compare logits
  void operator()(const ScoreTokensOp&) const {}
  void operator()(const PoolOp&) const {}
  void operator()(const PublishLayerOp&) const {}
  void operator()(const ShareKeysOp&) const {}
};

void Interpreter::run(const Op& op) { std::visit(RunOp{*this}, op); }

Ranks::Ranks(std::vector<Program> programs, const ModelConfig& config, Storage storage,
             int64_t max_tokens, int64_t max_requests)
    : programs_(std::move(programs)) {
  for (const Program& program : programs_)
    ranks_.push_back(
        std::make_unique<Interpreter>(program, config, storage, max_tokens, max_requests));
}

// `in` and `out` are the values that a rank's op adds up and leaves.
template <class O>
void Ranks::all_reduce(ValueId O::*in, ValueId O::*out, size_t index) {
  const auto op_of = [index](const Interpreter& rank) -> const O& {
    return std::get<O>(rank.program().ops[index]);
  };
  const ValueId first = op_of(*ranks_[0]).*in;
  const int64_t count = ranks_[0]->rows(first) * ranks_[0]->cols(first);
  std::vector<double> sums(static_cast<size_t>(count), 0.0);
  for (const auto& rank : ranks_) {
    for (int64_t i = 0; i < count; ++i)
      sums[static_cast<size_t>(i)] += rank->data(op_of(*rank).*in)[i];
  }
  for (const auto& rank : ranks_)
    std::copy(sums.begin(), sums.end(), rank->data(op_of(*rank).*out));
}

void Ranks::all_gather(size_t index) {
  for (const auto& to : ranks_) {
    float* out = to->data(std::get<AllGatherOp>(to->program().ops[index]).out);
    for (const auto& from : ranks_) {
      const ValueId in = std::get<AllGatherOp>(from->program().ops[index]).in;
      out = std::copy_n(from->data(in), from->rows(in) * from->cols(in), out);
    }
  }
}

std::vector<std::vector<float>> Ranks::run(const Step& step) {
  for (const auto& rank : ranks_) rank->begin(step);
  for (size_t i = 0; i < programs_[0].ops.size(); ++i) {
    const Op& first = programs_[0].ops[i];
    if (std::holds_alternative<AllReduceAddRmsNormOp>(first))
      all_reduce(&AllReduceAddRmsNormOp::delta, &AllReduceAddRmsNormOp::delta, i);
    for (const auto& rank : ranks_) {
      REFRAIN_CHECK(rank->program().ops[i].index() == first.index(), "ranks disagree on op {}", i);
      rank->run(rank->program().ops[i]);
    }
    if (std::holds_alternative<AllReduceOp>(first))
      all_reduce(&AllReduceOp::value, &AllReduceOp::out, i);
    const auto* fused = std::get_if<FusedLinearOp>(&first);
    if (fused != nullptr && fused->push >= 0)
      all_reduce(&FusedLinearOp::out, &FusedLinearOp::out, i);
    if (std::holds_alternative<AllGatherOp>(first)) all_gather(i);
  }
  std::vector<std::vector<float>> logits;
  for (const auto& rank : ranks_) {
    const auto& sample = std::get<SampleOp>(rank->program().ops.back());
    const int64_t cols = rank->cols(sample.logits), requests = step.requests();
    std::vector<std::vector<float>> mine(static_cast<size_t>(requests));
    for (int64_t r = 0; r < requests; ++r)
      for (int64_t token = 0; token < sample.vocab_size; ++token)
        mine[static_cast<size_t>(r)].push_back(
            rank->data(sample.logits)[(token / cols * requests + r) * cols + token % cols]);
    REFRAIN_CHECK(logits.empty() || logits == mine, "ranks disagree on the logits");
    logits = std::move(mine);
  }
  return logits;
}

double distance(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  REFRAIN_CHECK(a.size() == b.size(), "different numbers of rows");
  double largest = 0;
  for (size_t r = 0; r < a.size(); ++r) {
    REFRAIN_CHECK(a[r].size() == b[r].size(), "different vocabularies");
    for (size_t i = 0; i < a[r].size(); ++i) {
      const double difference = std::abs(static_cast<double>(a[r][i]) - b[r][i]);
      if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace refrain::worker::test
