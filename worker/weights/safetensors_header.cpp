#include <algorithm>

#include "runtime/base/json.h"
#include "worker/weights/safetensors.h"

namespace refrain::worker {
namespace {

using nlohmann::json;

constexpr size_t kMaxDims = 8;

struct DTypeSize {
  const char* name;
  uint64_t bytes;
};
constexpr DTypeSize kDTypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8},
};

// Collects tensors while the parser walks the header; stops at the first thing out of place.
class HeaderReader final : public json::json_sax_t {
 public:
  std::vector<TensorInfo> tensors;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(json::number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(json::number_float_t, const std::string&) override {
    return unexpected("a fraction");
  }
  bool binary(json::binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(json::number_unsigned_t value) override {
    if (place_ == Place::kShape) return add_dimension(value);
    if (place_ == Place::kOffsets) return add_offset(value);
    return unexpected("a number");
  }
  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return unexpected("a string");
    tensors.back().dtype = value;
    return true;
  }
  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == "__metadata__") {
      if (std::exchange(has_metadata_, true)) return fail_with("__metadata__ is there twice");
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      tensors.push_back({.name = key_, .dtype = {}, .shape = {}});
      seen_ = 0;
      place_ = Place::kTensor;
    } else {
      return unexpected("an object");
    }
    return true;
  }
  bool key(std::string& value) override {
    if (place_ == Place::kTop) key_ = value;
    if (place_ != Place::kTensor) return true;
    field_ = value;
    const unsigned bit = value == "dtype"          ? 1
                         : value == "shape"        ? 2
                         : value == "data_offsets" ? 4
                                                   : 0;
    if (bit == 0) return fail_with(fmt::format("field \"{}\" is not known", value.substr(0, 80)));
    if ((seen_ & bit) != 0) return fail_with(fmt::format("field \"{}\" is there twice", value));
    seen_ |= bit;
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTensor && seen_ != 7)
      return fail_with(fmt::format("\"{}\" is missing", (seen_ & 1) == 0   ? "dtype"
                                                        : (seen_ & 2) == 0 ? "shape"
                                                                           : "data_offsets"));
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::kTensor || (field_ != "shape" && field_ != "data_offsets"))
      return unexpected("a list");
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    num_offsets_ = 0;
    return true;
  }
  bool end_array() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2)
      return fail_with("data_offsets needs two numbers");
    place_ = Place::kTensor;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    problem = fmt::format("the header is not valid JSON at byte {}", position);
    return false;
  }

 private:
  enum class Place : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool fail_with(const std::string& what) {
    const bool in_tensor = place_ != Place::kStart && place_ != Place::kEnd && !key_.empty();
    problem = in_tensor ? fmt::format("tensor \"{}\": {}", key_.substr(0, 200), what) : what;
    return false;
  }
  bool unexpected(const char* what) {
    if (place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets)
      return fail_with(fmt::format("\"{}\" has {} where it must not", field_, what));
    return fail_with(fmt::format("the header has {} where it must not", what));
  }
  bool add_dimension(uint64_t value) {
    auto& shape = tensors.back().shape;
    if (value > INT64_MAX) return fail_with("a dimension is too large");
    if (shape.size() == kMaxDims)
      return fail_with(fmt::format("shape has more than {} dimensions", kMaxDims));
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool add_offset(uint64_t value) {
    if (num_offsets_ == 2) return fail_with("data_offsets needs two numbers");
    (num_offsets_ == 0 ? tensors.back().begin : tensors.back().end) = value;
    ++num_offsets_;
    return true;
  }

  Place place_ = Place::kStart;
  std::string key_, field_;
  unsigned seen_ = 0;
  int num_offsets_ = 0;
  bool has_metadata_ = false;
};

tl::unexpected<Error> tensor_error(const std::string& file, const TensorInfo& tensor,
                                   const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\": {}", file,
              tensor.name.substr(0, 200), what);
}

// dtype known, range in order, and as long as dtype × shape says.
Status check_size(const TensorInfo& tensor, const std::string& file) {
  const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](const DTypeSize& d) { return tensor.dtype == d.name; });
  if (known == std::end(kDTypes))
    return tensor_error(file, tensor,
                        fmt::format("dtype \"{}\" is not known", tensor.dtype.substr(0, 40)));
  uint64_t bytes = known->bytes;
  for (const int64_t dim : tensor.shape)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes))
      return tensor_error(file, tensor, "shape is too large");
  if (tensor.begin > tensor.end)
    return tensor_error(
        file, tensor, fmt::format("data_offsets [{}, {}] run backwards", tensor.begin, tensor.end));
  if (tensor.end - tensor.begin != bytes)
    return tensor_error(file, tensor,
                        fmt::format("data_offsets hold {} bytes, dtype and shape need {}",
                                    tensor.end - tensor.begin, bytes));
  return {};
}

// Side by side from the first byte of the data to the last.
Status check_places(const std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                    const std::string& file) {
  uint64_t at = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.end > data_bytes)
      return tensor_error(
          file, tensor,
          fmt::format("data ends at byte {}, but the file has only {} bytes of data: "
                      "it is incomplete",
                      tensor.end, data_bytes));
    if (tensor.begin != at)
      return tensor_error(
          file, tensor,
          fmt::format("data begins at byte {} instead of {}: data must {}", tensor.begin, at,
                      tensor.begin < at ? "not overlap" : "have no holes"));
    at = tensor.end;
  }
  if (at != data_bytes)
    return fail(ErrorCode::kInvalidArgument,
                "{}: the file has {} bytes of data, its tensors need {}", file, data_bytes, at);
  return {};
}

Status check_names(const std::vector<TensorInfo>& tensors, const std::string& file) {
  std::vector<const TensorInfo*> by_name;
  by_name.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) by_name.push_back(&tensor);
  std::sort(by_name.begin(), by_name.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; });
  for (size_t i = 1; i < by_name.size(); ++i)
    if (by_name[i]->name == by_name[i - 1]->name)
      return tensor_error(file, *by_name[i], "is there twice");
  return {};
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors_header(std::span<const char> text,
                                                         uint64_t data_bytes,
                                                         const std::string& file) {
  if (text.empty() || text.front() != '{')
    return fail(ErrorCode::kInvalidArgument,
                "{}: the header must be a JSON object; is this a safetensors file?", file);
  HeaderReader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader))
    return fail(ErrorCode::kInvalidArgument, "{}: {}", file, reader.problem);
  std::vector<TensorInfo>& tensors = reader.tensors;
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  REFRAIN_RETURN_IF_ERROR(check_names(tensors, file));
  for (const TensorInfo& tensor : tensors) REFRAIN_RETURN_IF_ERROR(check_size(tensor, file));
  REFRAIN_RETURN_IF_ERROR(check_places(tensors, data_bytes, file));
  return std::move(tensors);
}

}  // namespace refrain::worker
