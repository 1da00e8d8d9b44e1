#pragma once
// Where the generated fixtures of tests/oracle/make_text_fixtures.py are, and how to read them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace refrain::text {

// The first that has fixtures of: $REFRAIN_TEXT_FIXTURES, $REFRAIN_BUILD_DIR/fixtures/text,
// build/fixtures/text. Empty if none has; tests then fail and say how to make them.
std::filesystem::path fixtures_dir();
std::string how_to_make_fixtures();

std::string read_file(const std::filesystem::path& path);
// Length-prefixed byte strings, and the same holding 32-bit ids.
std::vector<std::string> read_blobs(const std::filesystem::path& path);
std::vector<std::vector<int32_t>> read_id_lists(const std::filesystem::path& path);

// Names of the entries of a folder of the fixtures, sorted, without their extension.
std::vector<std::string> fixture_names(const std::string& folder);

}  // namespace refrain::text
