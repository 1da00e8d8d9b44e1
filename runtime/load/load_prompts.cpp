#include "runtime/load/load_prompts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/load/load_files.h"
#include "runtime/load/python_random.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFirstId = 10;  // those before it are often special tokens
// About one token each in most vocabularies.
constexpr std::array kWords = {"time",    "people", "water", "long",  "little", "very",
                               "after",   "word",   "just",  "where", "most",   "know",
                               "good",    "same",   "right", "think", "also",   "around",
                               "another", "came",   "three", "high",  "every",  "large"};

class Maker {
 public:
  Maker(const LoadOptions& options, const text::Tokenizer* tokenizer)
      : options_(options), tokenizer_(tokenizer), random_(options.seed) {}

  std::vector<int32_t> ids(int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random_.randrange(kFirstId, options_.vocab_size));
    }
    return ids;
  }

  // A length around `mean` whose logarithm is normal.
  int64_t lognormal(double mean, double sigma, int64_t least, int64_t most) {
    const double length = random_.lognormvariate(std::log(mean) - sigma * sigma / 2, sigma);
    return std::clamp(static_cast<int64_t>(length), least, most);
  }

  int64_t around(int64_t length) {
    const auto spread =
        static_cast<int64_t>(std::floor(static_cast<double>(length) * options_.random_range_ratio));
    return std::max<int64_t>(1, random_.randrange(length - spread, length + spread + 1));
  }

  LoadPrompt prompt(const std::vector<int32_t>& prefix, int64_t length, int64_t max_tokens) {
    LoadPrompt prompt;
    prompt.ids = prefix;
    const std::vector<int32_t> own = ids(length);
    prompt.ids.insert(prompt.ids.end(), own.begin(), own.end());
    prompt.max_tokens = max_tokens;
    if (options_.prompts == "text") as_text(prompt);
    return prompt;
  }

  // Mean and spread of ShareGPT's conversations, without the file.
  void like_sharegpt(std::vector<LoadPrompt>& prompts) {
    const auto prefix = ids(options_.random_prefix_len);
    for (int64_t i = 0; i < options_.num_prompts; ++i) {
      LoadPrompt made = prompt(prefix, lognormal(230, 1.0, 8, 1500), 0);
      made.max_tokens = lognormal(200, 0.8, 8, 800);
      prompts.push_back(std::move(made));
    }
  }

  void random_lengths(std::vector<LoadPrompt>& prompts) {
    const auto prefix = ids(options_.random_prefix_len);
    for (int64_t i = 0; i < options_.num_prompts; ++i) {
      const int64_t length = around(options_.random_input_len);
      prompts.push_back(prompt(prefix, length, around(options_.random_output_len)));
    }
  }

  void prefix_repetition(std::vector<LoadPrompt>& prompts) {
    std::vector<std::vector<int32_t>> prefixes;
    for (int64_t i = 0; i < options_.prefix_num_prefixes; ++i) {
      prefixes.push_back(ids(options_.prefix_len));
    }
    for (int64_t i = 0; i < options_.num_prompts; ++i) {
      prompts.push_back(prompt(prefixes[static_cast<size_t>(i) % prefixes.size()],
                               options_.prefix_suffix_len, options_.prefix_output_len));
    }
  }

  // A file's lines, over again until there are enough; made-up prompts where only lengths are
  // given.
  void given(std::vector<GivenPrompt> lines, std::vector<LoadPrompt>& prompts) {
    for (int64_t i = 0; i < options_.num_prompts; ++i) {
      const GivenPrompt& line = lines[static_cast<size_t>(i) % lines.size()];
      if (line.input_len > 0) {
        prompts.push_back(prompt({}, line.input_len, line.prompt.max_tokens));
      } else {
        prompts.push_back(line.prompt);
      }
    }
  }

  std::vector<double> starts() {
    std::vector<double> starts;
    double now = 0;
    for (int64_t i = 0; i < options_.num_prompts; ++i) {
      const double rate = rate_of(i);
      if (std::isfinite(rate)) {
        now += options_.burstiness == 1
                   ? random_.expovariate(rate)
                   : random_.gammavariate(options_.burstiness, 1 / (rate * options_.burstiness));
      }
      starts.push_back(now);
    }
    return starts;
  }

 private:
  void as_text(LoadPrompt& prompt) {
    if (tokenizer_ != nullptr) {
      prompt.text = tokenizer_->decode(prompt.ids, /*skip_special_tokens=*/true);
    } else {
      for (const int32_t id : prompt.ids) {
        prompt.text += kWords[static_cast<size_t>(id) % kWords.size()];
        prompt.text += ' ';
      }
    }
    prompt.ids.clear();
  }

  double rate_of(int64_t request) const {
    const double from = options_.ramp_up_start_rps, to = options_.ramp_up_end_rps;
    const double progress =
        static_cast<double>(request) / static_cast<double>(options_.num_prompts);
    if (options_.ramp_up_strategy == "linear") return from + (to - from) * progress;
    if (options_.ramp_up_strategy == "exponential") return from * std::pow(to / from, progress);
    return options_.request_rate;
  }

  const LoadOptions& options_;
  const text::Tokenizer* tokenizer_;
  PythonRandom random_;
};

}  // namespace

Result<Load> make_load(const LoadOptions& options, const text::Tokenizer* tokenizer) {
  Load load;
  Maker maker(options, tokenizer);
  if (options.dataset == "random") {
    maker.random_lengths(load.prompts);
  } else if (options.dataset == "prefix_repetition") {
    maker.prefix_repetition(load.prompts);
  } else if (options.dataset == "sharegpt" && options.dataset_path.empty()) {
    maker.like_sharegpt(load.prompts);
  } else {
    REFRAIN_ASSIGN_OR_RETURN(auto lines, options.dataset == "sharegpt"
                                             ? read_sharegpt(options, tokenizer)
                                             : read_custom(options));
    maker.given(std::move(lines), load.prompts);
  }
  load.starts = maker.starts();
  return load;
}

std::string request_body(const LoadOptions& options, const Json& extra, const LoadPrompt& prompt) {
  Json body = {{"model", options.model},
               {"max_tokens", prompt.max_tokens},
               {"temperature", options.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (options.is_chat()) {
    body["messages"] = prompt.messages
                           ? *prompt.messages
                           : Json::array({{{"role", "user"}, {"content", prompt.text}}});
  } else if (!prompt.ids.empty()) {
    body["prompt"] = prompt.ids;
  } else {
    body["prompt"] = prompt.text;
  }
  body.update(extra);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace refrain
