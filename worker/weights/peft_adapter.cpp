#include "worker/weights/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include "runtime/base/json.h"
#include "worker/weights/convert.h"

namespace refrain::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uintmax_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxRank = 4096;
constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kHead = "lm_head";
constexpr const char* kBaseLeaf = ".base_layer.weight";

struct Leaf {
  const char* name;
  bool is_a, of_embedding;
};
constexpr Leaf kLeaves[] = {{".lora_A.weight", true, false},
                            {".lora_B.weight", false, false},
                            {".lora_embedding_A", true, true},
                            {".lora_embedding_B", false, true}};

bool is_embedding(const std::string& module) { return module.ends_with("embed_tokens"); }

struct Scaling {
  int64_t rank = 0;
  float scale = 1;
  bool ties = false;  // ensure_weight_tying
};

class ConfigReader {
 public:
  explicit ConfigReader(std::string path) : path_(std::move(path)) {}

  Result<Scaling> read() const {
    std::error_code error;
    const auto size = fs::file_size(path_, error);
    if (error) return wrong("cannot be read: {}", error.message());
    if (size > kMaxConfigBytes) return wrong("is larger than 1 MiB");
    std::ifstream file(path_, std::ios::binary);
    const json config = json::parse(file, nullptr, false);
    if (!config.is_object()) return wrong("is not a JSON object");
    REFRAIN_RETURN_IF_ERROR(refuse_what_is_not_done(config));
    const auto rank = config.find("r"), alpha = config.find("lora_alpha");
    if (rank == config.end() || !rank->is_number_integer() || *rank < 1 || *rank > kMaxRank)
      return wrong("\"r\" must be a whole number from 1 to {}", kMaxRank);
    if (alpha == config.end() || !alpha->is_number())
      return wrong("\"lora_alpha\" must be a number");
    const auto r = rank->get<int64_t>();
    const auto divisor = config.value("use_rslora", false) ? std::sqrt(static_cast<double>(r))
                                                           : static_cast<double>(r);
    return Scaling{r, static_cast<float>(alpha->get<double>() / divisor),
                   says_something(config, "ensure_weight_tying")};
  }

 private:
  template <class... Args>
  tl::unexpected<Error> wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", path_,
                fmt::format(format, std::forward<Args>(args)...));
  }

  // Whether the field is there and says something: not null, false, "none", 0 or empty.
  static bool says_something(const json& config, const char* field) {
    const auto at = config.find(field);
    if (at == config.end() || at->is_null()) return false;
    if (at->is_boolean()) return at->get<bool>();
    if (at->is_string()) return *at != "" && *at != "none";
    if (at->is_number()) return *at != 0;
    return !at->empty();
  }

  Status refuse_what_is_not_done(const json& config) const {
    if (const auto type = config.find("peft_type"); type == config.end() || *type != "LORA")
      return wrong("\"peft_type\" must be \"LORA\"");
    if (const auto flag = config.find("use_rslora");
        flag != config.end() && !flag->is_null() && !flag->is_boolean())
      return wrong("\"use_rslora\" must be true or false");
    struct Refused {
      const char* field;
      const char* what;
    };
    static constexpr Refused kRefused[] = {
        {"use_dora", "DoRA adapters"},
        {"modules_to_save", "adapters that bring whole modules"},
        {"bias", "adapters that train biases"},
        {"lora_bias", "adapters with biases of their own"},
        {"rank_pattern", "ranks that differ by module"},
        {"alpha_pattern", "scales that differ by module"},
        {"fan_in_fan_out", "transposed weights"},
        {"target_parameters", "adapters of parameters that are no linears"},
        {"trainable_token_indices", "adapters that train tokens"},
        {"layer_replication", "adapters that repeat layers"},
        {"use_qalora", "QA-LoRA adapters"},
        {"alora_invocation_tokens", "activated LoRA adapters"},
    };
    for (const Refused& refused : kRefused) {
      if (says_something(config, refused.field))
        return wrong("\"{}\": {} are not supported", refused.field, refused.what);
    }
    return {};
  }

  std::string path_;
};

std::optional<DType> dtype_of(const TensorInfo& tensor) {
  if (tensor.dtype == "BF16") return DType::kBFloat16;
  if (tensor.dtype == "F16") return DType::kFloat16;
  if (tensor.dtype == "F32") return DType::kFloat32;
  return std::nullopt;
}

const char* why_refused(const std::string& name) {
  const auto has = [&name](const char* part) { return name.find(part) != std::string::npos; };
  if (has("lora_magnitude_vector")) return "DoRA adapters are not supported";
  if (has("modules_to_save")) return "adapters that bring whole modules are not supported";
  if (name.ends_with(".bias")) return "adapters with biases are not supported";
  return "it is neither lora_A.weight nor lora_B.weight of a linear, nor lora_embedding_A or "
         "lora_embedding_B of embed_tokens";
}

}  // namespace

Result<PeftAdapter> PeftAdapter::open(const fs::path& directory) {
  PeftAdapter adapter;
  REFRAIN_ASSIGN_OR_RETURN(const Scaling scaling,
                           ConfigReader((directory / "adapter_config.json").string()).read());
  adapter.rank_ = scaling.rank;
  adapter.scale_ = scaling.scale;
  adapter.ties_ = scaling.ties;
  REFRAIN_ASSIGN_OR_RETURN(SafetensorsFile file,
                           SafetensorsFile::open(directory / "adapter_model.safetensors"));
  adapter.file_ = std::make_shared<const SafetensorsFile>(std::move(file));
  for (const TensorInfo& tensor : adapter.file_->tensors())
    REFRAIN_RETURN_IF_ERROR(adapter.add(tensor));
  REFRAIN_RETURN_IF_ERROR(adapter.check_pairs());
  return adapter;
}

tl::unexpected<Error> PeftAdapter::refuse(const TensorInfo& tensor, const std::string& why) const {
  return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\": {}", path(),
              tensor.name.substr(0, 200), why);
}

Status PeftAdapter::add(const TensorInfo& tensor) {
  for (const Leaf& leaf : kLeaves) {
    if (!tensor.name.starts_with(kPrefix) || !tensor.name.ends_with(leaf.name)) continue;
    const size_t begin = std::char_traits<char>::length(kPrefix);
    const size_t end = tensor.name.size() - std::char_traits<char>::length(leaf.name);
    if (end <= begin) break;
    const std::string module = tensor.name.substr(begin, end - begin);
    if (leaf.of_embedding != is_embedding(module)) break;
    if (!dtype_of(tensor))
      return refuse(tensor, fmt::format("has dtype {}; BF16, F16 or F32 is needed", tensor.dtype));
    if (tensor.shape.size() != 2 || tensor.shape[leaf.is_a ? 0 : 1] != rank_)
      return refuse(tensor, fmt::format("its shape is not {} of rank {}",
                                        leaf.is_a ? "[rank, columns]" : "[rows, rank]", rank_));
    if (ties_ && (is_embedding(module) || module == kHead))
      return refuse(tensor, "adapters of tied weights (\"ensure_weight_tying\") are not supported");
    Pair& pair = modules_[module];
    (leaf.is_a ? pair.a : pair.b) = tensor;
    return {};
  }
  if (tensor.name.starts_with(kPrefix) && tensor.name.ends_with(kBaseLeaf)) {
    std::string module = tensor.name.substr(std::char_traits<char>::length(kPrefix));
    module.resize(module.size() -
                  std::min(module.size(), std::char_traits<char>::length(kBaseLeaf)));
    if ((is_embedding(module) || module == kHead) && dtype_of(tensor)) {
      base_weights_[module] = tensor;
      return {};
    }
  }
  return refuse(tensor, why_refused(tensor.name));
}

Status PeftAdapter::check_pairs() const {
  if (modules_.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: has no tensor of an adapter", path());
  for (const auto& [module, pair] : modules_) {
    if (!pair.a.name.empty() && !pair.b.name.empty()) continue;
    const bool of_embedding = is_embedding(module), is_a = pair.a.name.empty();
    const auto* missing = std::ranges::find_if(kLeaves, [of_embedding, is_a](const Leaf& leaf) {
      return leaf.of_embedding == of_embedding && leaf.is_a == is_a;
    });
    return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}{}{}\" is missing", path(), kPrefix,
                module.substr(0, 200), missing->name);
  }
  return {};
}

Status PeftAdapter::check_base(const TensorInfo& tensor, const WeightPart& part,
                               WeightSource& model) const {
  if (tensor.shape != std::vector<int64_t>{part.tensor_rows, part.tensor_cols})
    return refuse(tensor, fmt::format("has another shape than the model's [{}, {}]",
                                      part.tensor_rows, part.tensor_cols));
  constexpr int64_t kRows = 256;
  for (int64_t row = part.row_begin; row < part.row_end; row += kRows) {
    const int64_t rows = std::min(kRows, part.row_end - row);
    REFRAIN_ASSIGN_OR_RETURN(const std::vector<float> mine,
                             read(tensor, row, rows, 0, part.tensor_cols));
    std::vector<float> expected(mine.size());
    REFRAIN_RETURN_IF_ERROR(model.read(part, row, rows, DType::kFloat32, expected.data()));
    const auto differs = std::ranges::mismatch(mine, expected).in1 - mine.begin();
    if (differs < std::ssize(mine))
      return refuse(tensor,
                    fmt::format("is not the model's weight: row {} differs. An adapter that needs "
                                "a base of its own is served with that as the model",
                                row + differs / part.tensor_cols));
  }
  return {};
}

Result<std::vector<float>> PeftAdapter::read(const TensorInfo& tensor, int64_t row, int64_t rows,
                                             int64_t col, int64_t cols) const {
  const DType stored = *dtype_of(tensor);
  const auto element = static_cast<int64_t>(size_of(stored));
  std::vector<char> bytes(static_cast<size_t>(rows * cols * element));
  const bool whole = cols == tensor.shape[1];  // then its rows lie one behind the other
  const int64_t pieces = whole ? 1 : rows, columns = whole ? rows * cols : cols;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t at = ((row + i) * tensor.shape[1] + col) * element;
    REFRAIN_RETURN_IF_ERROR(file_->read(tensor, static_cast<uint64_t>(at),
                                        static_cast<size_t>(columns * element),
                                        bytes.data() + i * columns * element));
  }
  std::vector<float> values(static_cast<size_t>(rows * cols));
  convert(bytes.data(), stored, values.data(), DType::kFloat32, rows * cols);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto at = static_cast<int64_t>(i);
    return fail(ErrorCode::kInvalidArgument,
                "{}: tensor \"{}\": holds a number that is not finite at row {}, column {}", path(),
                tensor.name, row + at / cols, col + at % cols);
  }
  return values;
}

}  // namespace refrain::worker
