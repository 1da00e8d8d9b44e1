#include <fmt/ranges.h>

#include <fstream>
#include <unordered_map>
#include <unordered_set>

#include "runtime/base/json.h"
#include "worker/weights/convert.h"
#include "worker/weights/safetensors.h"
#include "worker/weights/weight_source.h"

namespace refrain::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr uintmax_t kMaxIndexBytes = 64 << 20;

Result<DType> readable_dtype(const TensorInfo& tensor, const std::string& file) {
  if (tensor.dtype == "BF16") return DType::kBFloat16;
  if (tensor.dtype == "F16") return DType::kFloat16;
  if (tensor.dtype == "F32") return DType::kFloat32;
  return fail(ErrorCode::kInvalidArgument,
              "{}: tensor \"{}\" has dtype {}; BF16, F16 or F32 is needed", file, tensor.name,
              tensor.dtype);
}

class Checkpoint final : public WeightSource {
 public:
  // Adds a file's tensors. One name in two files is an error, unless the index decides.
  Status add_file(SafetensorsFile file) {
    files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
    const SafetensorsFile& added = *files_.back();
    for (const TensorInfo& tensor : added.tensors()) {
      const auto [place, fresh] = places_.try_emplace(tensor.name, Place{&added, &tensor});
      if (!fresh)
        return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\" is in {} as well", added.path(),
                    tensor.name, place->second.file->path());
    }
    return {};
  }

  bool has(const std::string& tensor, const std::string& path) const {
    const auto found = places_.find(tensor);
    return found != places_.end() && found->second.file->path() == path;
  }

  Status check(const WeightPart& part) const override {
    const auto found = find(part.tensor);
    if (found == places_.end())
      return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\" is missing", origin(),
                  part.tensor);
    const auto& [file, tensor] = found->second;
    if (part.targets > 0 && tensor->dtype != "I64")
      return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\" has dtype {}; I64 is needed",
                  file->path(), part.tensor, tensor->dtype);
    if (part.targets == 0) {
      if (const auto dtype = readable_dtype(*tensor, file->path()); !dtype)
        return forward_error(dtype.error());
    }
    std::vector<int64_t> wanted = {part.tensor_rows, part.tensor_cols};
    if (tensor->shape.size() == 1 && part.tensor_cols == 1) wanted.pop_back();
    if (tensor->shape != wanted)
      return fail(ErrorCode::kInvalidArgument,
                  "{}: tensor \"{}\" has shape [{}], config.json asks for [{}]", file->path(),
                  part.tensor, fmt::join(tensor->shape, ", "), fmt::join(wanted, ", "));
    return {};
  }

  Status read(const WeightPart& part, int64_t row, int64_t rows, DType dtype, void* to) override {
    if (part.targets > 0) return read_whole_numbers(part, row, rows, static_cast<float*>(to));
    const auto& [file, tensor] = find(part.tensor)->second;
    REFRAIN_ASSIGN_OR_RETURN(const DType stored, readable_dtype(*tensor, file->path()));
    const auto element = static_cast<int64_t>(size_of(stored));
    const int64_t cols = part.col_end - part.col_begin;
    const bool whole_rows = cols == part.tensor_cols;
    // A slice of columns is read row by row, whole rows at once.
    const int64_t pieces = whole_rows ? 1 : rows;
    const int64_t piece_elements = whole_rows ? rows * cols : cols;
    char* out = static_cast<char*>(to);
    if (stored != dtype) {
      staging_.resize(static_cast<size_t>(rows * cols * element));
      out = staging_.data();
    }
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t offset = ((row + i) * part.tensor_cols + part.col_begin) * element;
      REFRAIN_RETURN_IF_ERROR(file->read(*tensor, static_cast<uint64_t>(offset),
                                         static_cast<size_t>(piece_elements * element),
                                         out + i * piece_elements * element));
    }
    if (stored != dtype) convert(staging_.data(), stored, to, dtype, rows * cols);
    return {};
  }

 private:
  // As float32, which holds what is below WeightPart::targets exactly.
  Status read_whole_numbers(const WeightPart& part, int64_t row, int64_t rows, float* to) {
    const auto& [file, tensor] = places_.at(part.tensor);
    std::vector<int64_t> numbers(static_cast<size_t>(rows));
    REFRAIN_RETURN_IF_ERROR(file->read(*tensor, static_cast<uint64_t>(row) * sizeof(int64_t),
                                       numbers.size() * sizeof(int64_t),
                                       reinterpret_cast<char*>(numbers.data())));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t number = numbers[static_cast<size_t>(i)];
      if (number < -(row + i) || number >= part.targets - (row + i))
        return fail(ErrorCode::kInvalidArgument,
                    "{}: tensor \"{}\" has {} at {}, which is none of {} tokens", file->path(),
                    part.tensor, number, row + i, part.targets);
      to[i] = static_cast<float>(number);
    }
    return {};
  }

  struct Place {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };
  // A model that was saved without its head has the names of its layers alone.
  std::unordered_map<std::string, Place>::const_iterator find(const std::string& tensor) const {
    const std::string prefix = "model.";
    const auto found = places_.find(tensor);
    if (found != places_.end() || !tensor.starts_with(prefix)) return found;
    return places_.find(tensor.substr(prefix.size()));
  }
  std::string origin() const {
    return files_.size() == 1 ? files_.front()->path()
                              : fs::path(files_.front()->path()).parent_path().string();
  }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Place> places_;
  std::vector<char> staging_;
};

// "weight_map" of the index: tensor name -> file name.
using IndexEntries = std::vector<std::pair<std::string, std::string>>;

Result<IndexEntries> read_index(const fs::path& path) {
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", path.string(), what);
  };
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return wrong("cannot be read: " + error.message());
  if (size > kMaxIndexBytes) return wrong("is larger than 64 MiB");
  std::ifstream file(path, std::ios::binary);
  const json index = json::parse(file, nullptr, false);
  if (index.is_discarded()) return wrong("is not valid JSON");
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    return wrong("\"weight_map\" is missing; an object from tensor to file name is needed");
  IndexEntries entries;
  for (const auto& [tensor, name] : map->items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : std::string();
    // A plain name: nothing that could leave the directory.
    if (text.empty() || text == "." || text == ".." || text.find('\0') != std::string::npos ||
        text.find('/') != std::string::npos || text.find('\\') != std::string::npos)
      return wrong(
          fmt::format("\"weight_map\" of \"{}\" must be the name of a file in the same "
                      "directory",
                      tensor.substr(0, 200)));
    entries.emplace_back(tensor, text);
  }
  if (entries.empty()) return wrong("\"weight_map\" is empty");
  return entries;
}

// What a directory's checkpoint consists of; without an index, one file and no entries.
struct Parts {
  std::vector<fs::path> files;
  IndexEntries entries;
};

Result<Parts> parts_of(const fs::path& directory) {
  Parts parts;
  std::error_code error;
  const fs::path index = directory / kIndex;
  if (!fs::exists(index, error)) {
    parts.files = {directory / kSingle};
    if (fs::exists(parts.files[0], error)) return parts;
    return fail(ErrorCode::kNotFound, "{}: neither {} nor {} is there", directory.string(), kSingle,
                kIndex);
  }
  REFRAIN_ASSIGN_OR_RETURN(parts.entries, read_index(index));
  std::unordered_set<std::string> seen;
  for (const auto& [tensor, name] : parts.entries) {
    if (!seen.insert(name).second) continue;
    if (!fs::exists(directory / name, error))
      return fail(ErrorCode::kNotFound, "{}: shard {} is missing from the directory",
                  index.string(), name);
    parts.files.push_back(directory / name);
  }
  return parts;
}

}  // namespace

Result<std::vector<fs::path>> checkpoint_files(const fs::path& directory) {
  REFRAIN_ASSIGN_OR_RETURN(Parts parts, parts_of(directory));
  return std::move(parts.files);
}

Result<std::unique_ptr<WeightSource>> open_checkpoint(const fs::path& directory) {
  REFRAIN_ASSIGN_OR_RETURN(const Parts parts, parts_of(directory));
  auto checkpoint = std::make_unique<Checkpoint>();
  for (const fs::path& path : parts.files) {
    REFRAIN_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
    REFRAIN_RETURN_IF_ERROR(checkpoint->add_file(std::move(file)));
  }
  for (const auto& [tensor, name] : parts.entries)
    if (!checkpoint->has(tensor, (directory / name).string()))
      return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\" is not in {}",
                  (directory / kIndex).string(), tensor.substr(0, 200), name);
  return checkpoint;
}

}  // namespace refrain::worker
