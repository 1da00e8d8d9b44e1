#include "runtime/load/load_run.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "runtime/base/build_info.h"
#include "runtime/base/json.h"
#include "runtime/load/event_reader.h"
#include "runtime/load/load_client.h"
#include "runtime/load/load_plot.h"
#include "runtime/load/load_prompts.h"
#include "runtime/load/server_counters.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

constexpr auto kProgress = std::chrono::seconds(10);  // between two lines of it

// One load under way: the main thread sends, the client's threads bring the answers.
class Sender {
 public:
  Sender(LoadClient& client, const LoadOptions& options, const Json& extra)
      : client_(client), options_(options), extra_(extra) {}

  // Sends all of them, each at its time, and waits for the last answer. Seconds that it took.
  double run(const std::vector<LoadPrompt>& prompts, const std::vector<double>& starts,
             std::vector<LoadRecord>& records) {
    records.assign(prompts.size(), {});
    const TimePoint begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto due = begin + to_duration(starts[i]);
      std::this_thread::sleep_until(due);
      wait_until(
          [&] {
            return options_.max_concurrency == 0 ||
                   static_cast<int64_t>(i - done_) < options_.max_concurrency;
          },
          prompts.size());
      send(prompts[i], begin, records[i]);
    }
    wait_until([&] { return done_ == prompts.size(); }, prompts.size());
    return seconds_between(begin, last_);
  }

 private:
  void send(const LoadPrompt& prompt, TimePoint begin, LoadRecord& record) {
    LoadClient::Request request;
    request.route = options_.endpoint;
    request.body = [this, &prompt] { return request_body(options_, extra_, prompt); };
    request.due = std::chrono::steady_clock::now();
    client_.start(std::move(request), begin, [this, &prompt, &record](LoadRecord answer) {
      answer.asked_tokens = prompt.max_tokens;
      if (answer.input_tokens == 0) answer.input_tokens = static_cast<int64_t>(prompt.ids.size());
      record = std::move(answer);
      const std::lock_guard lock(mutex_);
      ++done_;
      last_ = std::chrono::steady_clock::now();
      changed_.notify_one();
    });
  }

  template <class Condition>
  void wait_until(Condition condition, size_t all) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kProgress, condition)) {
      std::fprintf(stderr, "%zu of %zu requests are answered\n", done_, all);
    }
  }

  LoadClient& client_;
  const LoadOptions& options_;
  const Json& extra_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t done_ = 0;  // under the mutex, as is the next
  TimePoint last_;
};

Result<std::string> first_model(LoadClient& client) {
  REFRAIN_ASSIGN_OR_RETURN(const HttpAnswer answer, client.get("/v1/models"));
  if (answer.status != 200) {
    return fail(answer.status == 401 ? ErrorCode::kUnauthenticated : ErrorCode::kNotFound,
                "/v1/models: HTTP {}: {}; name the model with --model", answer.status,
                error_text(answer.body));
  }
  const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("data") && json["data"].is_array() &&
      !json["data"].empty() && json["data"][0].is_object()) {
    const std::string id = json["data"][0].value("id", "");
    if (!id.empty()) return id;
  }
  return fail(ErrorCode::kNotFound, "/v1/models names no model; name it with --model");
}

// Nothing: the server shows none, or is not Refrain.
Result<std::optional<ServerCounters>> counters_of(LoadClient& client) {
  REFRAIN_ASSIGN_OR_RETURN(const HttpAnswer answer, client.get("/metrics"));
  if (answer.status != 200) return std::nullopt;
  return read_counters(answer.body);
}

Status check_undisturbed(const ServerCounters& before, LoadClient& client) {
  REFRAIN_ASSIGN_OR_RETURN(const auto after, counters_of(client));
  if (after) return undisturbed(before, *after);
  return fail(ErrorCode::kInternal, "/metrics could be read before the load and cannot now");
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts));
  return text;
}

Status write_file(const std::string& option, const std::filesystem::path& path,
                  const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return fail_field(option, "{} {} cannot be written", option, path.string());
  return {};
}

Status write_results(const LoadOptions& options, const Json& json,
                     const std::vector<LoadRecord>& records, const LoadFigures& figures) {
  if (options.save_result) {
    std::string name = options.result_filename;
    if (name.empty()) {
      name = fmt::format("openai-{}qps-{}-{}.json", options.request_rate,
                         std::filesystem::path(options.model).filename().string(),
                         json["date"].get<std::string>());
    }
    Json all = json;
    if (options.save_detailed) add_details(all, records);
    REFRAIN_RETURN_IF_ERROR(write_file(
        "--result-filename", std::filesystem::path(options.result_dir) / name, all.dump(2) + "\n"));
  }
  if (options.plot.empty()) return {};
  return write_file("--plot", options.plot, load_plot(figures, records));
}

}  // namespace

Status run_load(LoadOptions options) {
  REFRAIN_RETURN_IF_ERROR(finish_load_options(options));
  const Json extra = Json::parse(options.extra_body);
  std::optional<text::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    auto loaded = text::Tokenizer::load(options.tokenizer);
    if (!loaded) {
      return fail_field("--tokenizer", "--tokenizer {}: {}", options.tokenizer,
                        loaded.error().message);
    }
    tokenizer = std::move(*loaded);
  }
  REFRAIN_ASSIGN_OR_RETURN(const Load load, make_load(options, tokenizer ? &*tokenizer : nullptr));
  LoadClient::Options client_options;
  REFRAIN_ASSIGN_OR_RETURN(client_options.url, parse_base_url(options.base_url));
  client_options.api_key = options.api_key;
  client_options.timeout = to_duration(options.request_timeout);
  client_options.threads = options.threads;
  REFRAIN_ASSIGN_OR_RETURN(const auto client, LoadClient::create(std::move(client_options)));
  if (options.model.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(options.model, first_model(*client));
  }
  REFRAIN_ASSIGN_OR_RETURN(const auto before, counters_of(*client));

  std::vector<LoadRecord> records;
  if (options.num_warmups > 0) {
    const auto count = static_cast<size_t>(std::min(options.num_warmups, options.num_prompts));
    const std::vector<LoadPrompt> first(load.prompts.begin(),
                                        load.prompts.begin() + static_cast<ptrdiff_t>(count));
    Sender(*client, options, extra).run(first, std::vector<double>(count, 0.0), records);
  }
  const double duration = Sender(*client, options, extra).run(load.prompts, load.starts, records);
  const LoadFigures figures = load_figures(records, duration, options);

  const Status calm = before ? check_undisturbed(*before, *client) : Status();
  Json json = figures_json(figures, options);
  json["date"] = utc_now();
  json["build"] = build_id();
  json["undisturbed"] = before ? Json(calm.has_value()) : Json();  // null: no Refrain server
  std::fputs((options.json ? json.dump(2) + "\n" : figures_table(figures, options)).c_str(),
             stdout);
  REFRAIN_RETURN_IF_ERROR(write_results(options, json, records, figures));
  REFRAIN_RETURN_IF_ERROR(calm);
  if (figures.failed > 0) {
    return fail(ErrorCode::kInternal, "{} of {} requests failed; the first kind: {}",
                figures.failed, options.num_prompts, figures.errors.begin()->first);
  }
  return {};
}

}  // namespace refrain
