#pragma once
// Tokens to text: detokenises, applies stop strings, and calls each request's sink: in order, with
// exactly one finish. Lives on the output executor; the engine posts to it.

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/engine/request.h"
#include "runtime/engine/stop_strings.h"
#include "runtime/sched/sequence.h"
#include "runtime/text/detokenizer.h"

namespace refrain {

FinishReason finish_reason(StopCause cause);

// A sampled token on its way to text.
struct TokenArrival {
  RequestId id = 0;
  TokenOutput token;
  StopCause stop = StopCause::kNone;
  int32_t cached_tokens = 0;
  TimePoint scheduled{};
  std::shared_ptr<const ipc::PromptScores> prompt = nullptr;
  std::shared_ptr<const std::vector<float>> pooled = nullptr;  // then it is no token of text
};

class OutputProcessor {
 public:
  // `stopped` hears of requests that a stop string has ended.
  OutputProcessor(std::shared_ptr<const text::Tokenizer> tokenizer,
                  std::function<void(RequestId)> stopped);

  void open(RequestId id, int64_t prompt_tokens, const SamplingParams& sampling, OutputSink sink);
  // Tokens of one step; those of requests that have ended are dropped.
  void push(std::vector<TokenArrival> arrivals);
  // Ends a request without a token: kAbort, or kError with its error. Nothing if it has ended.
  void end(RequestId id, FinishReason reason, std::optional<Error> error);
  size_t size() const { return requests_.size(); }

 private:
  struct Request {
    OutputSink sink;
    text::IncrementalDetokenizer detokenizer;
    StopStrings stops;
    int64_t min_tokens = 0;
    bool include_stop = false;
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t output_tokens = 0;
  };
  static void add_text(Request& request, std::string_view text, RequestOutput& output);
  static void finish_text(Request& request, const TokenArrival& arrival, RequestOutput& output);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::function<void(RequestId)> stopped_;
  std::unordered_map<RequestId, Request> requests_;
};

}  // namespace refrain
