// Speed of the text code on one thread: loading, encoding (first and later passes over a text),
// decoding step by step, rendering a chat template. One JSON object a line.
//   text_bench MODEL_DIR TEXT_FILE
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/tokenizer.h"

namespace {

using refrain::text::ChatTemplate;
using refrain::text::IncrementalDetokenizer;
using refrain::text::Tokenizer;

constexpr int kRuns = 7;

// Seconds of each run, sorted.
template <class F>
std::vector<double> timed(F&& run) {
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = refrain::steady_clock().now();
    run();
    seconds.push_back(refrain::seconds_between(start, refrain::steady_clock().now()));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void report(const char* name, const std::string& model, double units, const char* unit,
            const std::vector<double>& seconds) {
  fmt::print(R"({{"case": "{}", "model": "{}", "runs": {}, "unit": "{}", "median": {:.4g}, )"
             R"("min": {:.4g}, "max": {:.4g}}})"
             "\n",
             name, model, seconds.size(), unit, units / seconds[seconds.size() / 2],
             units / seconds.back(), units / seconds.front());
}

int fail(const std::string& message) {
  fmt::print(stderr, "text_bench: {}\n", message);
  return 64;
}

void bench_chat(const std::filesystem::path& dir, const std::string& model) {
  const auto chat = ChatTemplate::load(dir);
  if (!chat) return;  // not every model has one
  nlohmann::ordered_json request = {{"messages", nlohmann::ordered_json::array()},
                                    {"add_generation_prompt", true}};
  for (int i = 0; i < 10; ++i)
    request["messages"].push_back({{"role", i % 2 == 0 ? "user" : "assistant"},
                                   {"content", "A message of some forty characters, say."}});
  constexpr int kTimes = 1000;
  size_t bytes = 0;
  const auto seconds = timed([&] {
    for (int i = 0; i < kTimes; ++i) bytes += chat->render(request).value_or("").size();
  });
  if (bytes > 0) report("render_10_messages", model, kTimes, "renderings/s", seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return fail("usage: text_bench MODEL_DIR TEXT_FILE");
  const std::filesystem::path dir = argv[1];
  const std::string model = dir.filename().string();
  std::ifstream file(argv[2], std::ios::binary);
  if (!file) return fail(fmt::format("cannot read {}", argv[2]));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const double megabytes = static_cast<double>(text.size()) / 1e6;

  auto loaded = Tokenizer::load(dir);
  if (!loaded) return fail(loaded.error().message);
  report("load", model, 1, "loads/s", timed([&] { loaded = Tokenizer::load(dir); }));

  std::vector<refrain::TokenId> ids;
  std::vector<double> first;
  for (int i = 0; i < kRuns; ++i) {
    const auto fresh = Tokenizer::load(dir);  // an empty piece cache
    const auto start = refrain::steady_clock().now();
    ids = fresh->encode(text, false).value_or(ids);
    first.push_back(refrain::seconds_between(start, refrain::steady_clock().now()));
  }
  std::sort(first.begin(), first.end());
  report("encode_first", model, megabytes, "MB/s", first);
  report("encode_again", model, megabytes, "MB/s",
         timed([&] { ids = loaded->encode(text, false).value_or(ids); }));

  size_t decoded = 0;
  report("detokenize", model, static_cast<double>(ids.size()), "tokens/s", timed([&] {
           IncrementalDetokenizer detokenizer(*loaded);
           for (const auto id : ids) decoded += detokenizer.push(id).size();
         }));
  if (decoded == 0) return fail("nothing was decoded");
  bench_chat(dir, model);
  return 0;
}
