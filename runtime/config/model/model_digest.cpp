// What tells one model directory from another: config.json, the names and sizes of the weight
// files, their headers, and a sample of every tensor, so that two fine-tunes of one shape differ.
// Of each tensor kPieces pieces of kPieceBytes are read, evenly spread from its first byte to its
// last (a small one is read whole): a thousand tensors cost four thousand small reads, whatever
// their size. Weights that differ between the pieces alone are not told apart.

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/config/model/model_config.h"

namespace refrain {
namespace {

constexpr uint64_t kPieces = 4, kPieceBytes = 256;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the loader takes
constexpr uint64_t kMostBytes = 16 << 20;          // of a file that is digested whole

// FNV-1a in two lanes: tells model directories apart, no defence against forgery.
struct Digest {
  uint64_t lanes[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
  void add(const std::string& bytes) {
    for (const char byte : bytes) {
      lanes[0] = (lanes[0] ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
      lanes[1] = (lanes[1] ^ (static_cast<uint8_t>(byte) + 0x9eu)) * 0x100000001b3u;
    }
    lanes[1] ^= lanes[1] >> 29;
  }
};

// Up to `count` bytes from `offset` on; fewer at the file's end.
std::string read_at(std::ifstream& file, uint64_t offset, uint64_t count) {
  std::string bytes(count, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

void add_sample(std::ifstream& file, uint64_t begin, uint64_t size, Digest& digest) {
  if (size <= kPieces * kPieceBytes) return digest.add(read_at(file, begin, size));
  const uint64_t stride = (size - kPieceBytes) / (kPieces - 1);
  for (uint64_t i = 0; i + 1 < kPieces; ++i)
    digest.add(read_at(file, begin + i * stride, kPieceBytes));
  digest.add(read_at(file, begin + size - kPieceBytes, kPieceBytes));
}

// Where the tensors of this header begin and end in the data. What is no proper header has one
// tensor, all of it: the loader says what is wrong with it.
std::vector<std::pair<uint64_t, uint64_t>> tensor_spans(const std::string& header,
                                                        uint64_t data_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> whole = {{0, data_bytes}};
  const auto json = nlohmann::json::parse(header, nullptr, false);
  if (!json.is_object()) return whole;
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& [name, tensor] : json.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = tensor.is_object() ? tensor.find("data_offsets") : tensor.end();
    if (offsets == tensor.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
      return whole;
    const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
    if (begin > end || end > data_bytes) return whole;
    spans.emplace_back(begin, end);
  }
  return spans;
}

Status add_weight_file(const std::filesystem::path& path, uint64_t size, Digest& digest) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kNotFound, "{}: cannot be read", path.string());
  uint64_t header_bytes = 0;
  const std::string length = read_at(file, 0, sizeof header_bytes);
  std::string header;
  if (length.size() == sizeof header_bytes) {
    std::memcpy(&header_bytes, length.data(), sizeof header_bytes);
    if (header_bytes <= std::min(kMaxHeaderBytes, size - length.size()))
      header = read_at(file, length.size(), header_bytes);
  }
  digest.add(header);
  const uint64_t data = header.empty() ? 0 : length.size() + header.size();
  for (const auto& [begin, end] : tensor_spans(header, size - data))
    add_sample(file, data + begin, end - begin, digest);
  return {};
}

Result<std::string> read_config(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kNotFound, "{}: cannot be read", path.string());
  std::string text = read_at(file, 0, kMostBytes + 1);
  if (text.size() > kMostBytes)
    return fail(ErrorCode::kTooLarge, "{}: has more than {} bytes", path.string(), kMostBytes);
  return text;
}

}  // namespace

namespace {

Result<std::string> directory_digest(const std::filesystem::path& directory,
                                     const char* config_name) {
  Digest digest;
  REFRAIN_ASSIGN_OR_RETURN(const std::string config, read_config(directory / config_name));
  digest.add(config);
  std::vector<std::pair<std::string, uint64_t>> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json")) continue;
    const auto size = it->file_size(error);
    if (error) break;
    files.emplace_back(name, size);
  }
  if (error)
    return fail(ErrorCode::kNotFound, "{}: cannot be listed: {}", directory.string(),
                error.message());
  std::sort(files.begin(), files.end());
  for (const auto& [name, size] : files) {
    digest.add(fmt::format("{} {}\n", name, size));
    if (name.ends_with(".safetensors"))
      REFRAIN_RETURN_IF_ERROR(add_weight_file(directory / name, size, digest));
  }
  return fmt::format("{:016x}{:016x}", digest.lanes[0], digest.lanes[1]);
}

}  // namespace

Result<std::string> model_digest(const std::filesystem::path& directory) {
  return directory_digest(directory, "config.json");
}

Result<std::string> adapter_digest(const std::filesystem::path& directory) {
  return directory_digest(directory, "adapter_config.json");
}

Result<std::string> model_digest(const std::filesystem::path& directory,
                                 const std::filesystem::path& draft) {
  REFRAIN_ASSIGN_OR_RETURN(std::string digest, model_digest(directory));
  if (draft.empty()) return digest;
  REFRAIN_ASSIGN_OR_RETURN(const std::string of_draft, model_digest(draft));
  return digest + "+" + of_draft;
}

}  // namespace refrain
