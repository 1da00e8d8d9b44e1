#include "tests/oracle/fixtures.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace refrain::text {

namespace fs = std::filesystem;

fs::path fixtures_dir() {
  std::vector<fs::path> places;
  if (const char* dir = std::getenv("REFRAIN_TEXT_FIXTURES")) places.emplace_back(dir);
  if (const char* dir = std::getenv("REFRAIN_BUILD_DIR"))
    places.emplace_back(fs::path(dir) / "fixtures/text");
  places.emplace_back("build/fixtures/text");
  for (const auto& place : places)
    if (fs::exists(place / "version")) return place;
  return {};
}

std::string how_to_make_fixtures() {
  return "the fixtures are missing; make them with: "
         "python tests/oracle/make_text_fixtures.py --out build/fixtures/text";
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> read_blobs(const fs::path& path) {
  const std::string data = read_file(path);
  std::vector<std::string> blobs;
  for (size_t at = 0; at + 4 <= data.size();) {
    uint32_t size = 0;
    std::memcpy(&size, data.data() + at, 4);
    blobs.push_back(data.substr(at + 4, size));
    at += 4 + size;
  }
  return blobs;
}

std::vector<std::vector<int32_t>> read_id_lists(const fs::path& path) {
  std::vector<std::vector<int32_t>> lists;
  for (const std::string& blob : read_blobs(path)) {
    auto& ids = lists.emplace_back(blob.size() / 4);
    std::memcpy(ids.data(), blob.data(), ids.size() * 4);
  }
  return lists;
}

std::vector<std::string> fixture_names(const std::string& folder) {
  std::vector<std::string> names;
  const fs::path dir = fixtures_dir();
  if (!dir.empty() && fs::exists(dir / folder)) {
    for (const auto& entry : fs::directory_iterator(dir / folder)) {
      const fs::path name = entry.path().filename();
      names.push_back(name.extension() == ".json" ? name.stem().string() : name.string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace refrain::text
