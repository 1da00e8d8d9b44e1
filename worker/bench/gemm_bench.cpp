#include <algorithm>

#include "worker/bench/kinds.h"

namespace refrain::worker {
namespace {

// "q_proj+k_proj+v_proj": the tensors that a weight is put together from, without their layer.
std::string weight_name(const Value& weight) {
  std::string name;
  for (const WeightPart& part : weight.parts) {
    std::string tensor = part.tensor.substr(0, part.tensor.rfind('.'));
    tensor = tensor.substr(tensor.rfind('.') + 1);
    name += (name.empty() ? "" : "+") + tensor;
  }
  return name;
}

}  // namespace

bool GemmBench::Shape::operator==(const Shape& other) const {
  return name == other.name && n == other.n && k == other.k;
}

std::vector<GemmBench::Shape> GemmBench::shapes() const {
  const Program& program = s_.program;
  std::vector<Shape> shapes;
  for (const Op& op : program.ops) {
    const auto* linear = std::get_if<LinearOp>(&op);
    if (linear == nullptr) continue;
    const Value& weight = program.value(linear->weight);
    Shape shape;
    shape.name = weight_name(weight);
    shape.n = weight.rows.scale;
    shape.k = weight.cols;
    shape.types = {program.value(linear->in).dtype, weight.dtype};
    shape.out = program.value(linear->out).dtype;
    shape.bias = linear->bias != kNoValue;
    shape.residual = linear->residual != kNoValue;
    shape.per_request = program.value(linear->in).rows.extent == kRequests;
    auto at = std::find(shapes.begin(), shapes.end(), shape);
    if (at == shapes.end()) at = shapes.insert(at, std::move(shape));
    ++at->count;
  }
  return shapes;
}

void GemmBench::measure(const Shape& shape, int32_t rows, const Pool& pool, const Limits& limits) {
  BenchDevice& device = s_.device;
  const size_t weight_bytes = device.device().weight_bytes(shape.types.weight, shape.n, shape.k);
  const auto in_bytes = static_cast<size_t>(rows * shape.k) * size_of(shape.types.in);
  const auto out_bytes = static_cast<size_t>(rows * shape.n) * size_of(shape.out);
  const auto in = device.numbers(in_bytes);
  const auto out = device.numbers(out_bytes);
  const auto bias = device.numbers(static_cast<size_t>(shape.n) * sizeof(float));
  const kernels::WeightLayout layout = device.device().weight_layout(shape.types.weight);
  kernels::FusedLinearArgs args;
  args.linear.in = {in->data(), shape.types.in, shape.k};
  args.linear.out = {out->data(), shape.out, shape.n};
  if (shape.bias) args.linear.bias = static_cast<const float*>(bias->data());
  if (shape.residual) args.linear.residual = args.linear.out;
  args.linear.rows = {rows, nullptr};
  const double bytes =
      static_cast<double>(shape.n * shape.k) * static_cast<double>(size_of(shape.types.weight)) +
      static_cast<double>(in_bytes) + static_cast<double>(out_bytes) * (shape.residual ? 2 : 1);
  const double flops = 2.0 * rows * static_cast<double>(shape.n * shape.k);
  const auto time = [&](const char* kernel, auto launch) {
    const auto seconds = device.time([&](int i) {
      args.linear.weight = {pool.part(weight_bytes, i), shape.types.weight, layout, shape.n,
                            shape.k};
      launch();
    });
    s_.cases.write_launch(limits, seconds, bytes, flops,
                          {{"what", fmt::format("{} {} x {}", shape.name, shape.n, shape.k)},
                           {"kernel", kernel},
                           {"batch", rows},
                           {"n", shape.n},
                           {"k", shape.k},
                           {"count", shape.count}});
  };
  const kernels::StreamRef stream = device.stream().ref();
  time("linear", [&] { device.kernels().linear(stream, args.linear); });
  if (rows <= device.kernels().few_rows.max_rows && shape.types.in == DType::kBFloat16 &&
      shape.types.weight == DType::kBFloat16 && shape.k % 8 == 0) {
    time("fused_linear", [&] { device.kernels().fused_linear(stream, args); });
  }
}

Status GemmBench::run() {
  const std::vector<Shape> all = shapes();
  REFRAIN_CHECK(!all.empty(), "{} has no linears", s_.program.name);
  size_t largest = 0;
  for (const Shape& shape : all) {
    largest =
        std::max(largest, s_.device.device().weight_bytes(shape.types.weight, shape.n, shape.k));
  }
  const Pool pool(s_.device, s_.options.pool_bytes, largest);
  const Limits limits = measure_limits(s_.device, pool, all.front().types);
  for (const Shape& shape : all) {
    for (const int32_t rows : s_.options.batches) {
      // Logits are made for requests alone, never for more than run at once.
      if (shape.per_request && rows > s_.options.config.max_num_seqs) continue;
      measure(shape, rows, pool, limits);
    }
  }
  return {};
}

}  // namespace refrain::worker
