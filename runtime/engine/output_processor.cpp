#include "runtime/engine/output_processor.h"

#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

bool is_stop_token(StopCause cause) {
  return cause == StopCause::kEos || cause == StopCause::kStopToken;
}

}  // namespace

FinishReason finish_reason(StopCause cause) {
  switch (cause) {
    case StopCause::kNone:
      return FinishReason::kNone;
    case StopCause::kEos:
    case StopCause::kStopToken:
      return FinishReason::kStop;
    case StopCause::kMaxTokens:
    case StopCause::kMaxModelLen:
      return FinishReason::kLength;
    case StopCause::kCancelled:
      return FinishReason::kAbort;
    case StopCause::kNoLogit:
    case StopCause::kGrammar:
      return FinishReason::kError;
  }
  REFRAIN_CHECK(false, "no such stop cause: {}", static_cast<int>(cause));
}

OutputProcessor::OutputProcessor(std::shared_ptr<const text::Tokenizer> tokenizer,
                                 std::function<void(RequestId)> stopped)
    : tokenizer_(std::move(tokenizer)), stopped_(std::move(stopped)) {}

void OutputProcessor::open(RequestId id, int64_t prompt_tokens, const SamplingParams& sampling,
                           OutputSink sink) {
  const text::DetokenizeOptions options{sampling.skip_special_tokens, true};
  Request request{std::move(sink),
                  text::IncrementalDetokenizer(*tokenizer_, options),
                  StopStrings(sampling.stop, sampling.include_stop_str_in_output),
                  sampling.min_tokens,
                  sampling.include_stop_str_in_output,
                  prompt_tokens,
                  0,
                  0};
  const bool added = requests_.emplace(id, std::move(request)).second;
  REFRAIN_CHECK(added, "request {} has an output already", id);
}

void OutputProcessor::push(std::vector<TokenArrival> arrivals) {
  for (TokenArrival& arrival : arrivals) {
    const auto found = requests_.find(arrival.id);
    if (found == requests_.end()) continue;
    Request& request = found->second;
    ++request.output_tokens;
    request.cached_tokens = arrival.cached_tokens;
    RequestOutput output;
    output.id = arrival.id;
    output.prompt_tokens = request.prompt_tokens;
    output.cached_tokens = request.cached_tokens;
    output.scheduled = arrival.scheduled;
    output.output_tokens = request.output_tokens;
    output.prompt = std::move(arrival.prompt);
    output.pooled = std::move(arrival.pooled);
    if (output.pooled == nullptr && (!is_stop_token(arrival.stop) || request.include_stop))
      add_text(request, request.detokenizer.push(arrival.token.token), output);
    const bool by_string = output.finish == FinishReason::kStop;
    if (!by_string && arrival.stop != StopCause::kNone) finish_text(request, arrival, output);
    output.tokens.push_back(std::move(arrival.token));
    if (output.finish == FinishReason::kNone) {
      request.sink(std::move(output));
      continue;
    }
    const OutputSink sink = std::move(request.sink);
    requests_.erase(found);
    if (arrival.stop == StopCause::kNone) stopped_(output.id);
    sink(std::move(output));
  }
}

// The first min_tokens tokens end no stop string, though one may begin there.
void OutputProcessor::add_text(Request& request, std::string_view text, RequestOutput& output) {
  if (request.output_tokens <= request.min_tokens) {
    output.text += request.stops.pass(text);
    return;
  }
  StopStrings::Found found = request.stops.push(text);
  output.text += found.text;
  if (!found.stop) return;
  output.finish = FinishReason::kStop;
  output.stop_reason = std::move(*found.stop);
}

void OutputProcessor::finish_text(Request& request, const TokenArrival& arrival,
                                  RequestOutput& output) {
  add_text(request, request.detokenizer.flush(), output);
  if (output.finish == FinishReason::kStop) return;
  output.text += request.stops.flush();
  output.finish = finish_reason(arrival.stop);
  if (arrival.stop != StopCause::kStopToken) return;
  output.stop_reason = std::to_string(arrival.token.token);
  output.stop_token = arrival.token.token;
}

void OutputProcessor::end(RequestId id, FinishReason reason, std::optional<Error> error) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  const Request request = std::move(found->second);
  requests_.erase(found);
  RequestOutput output;
  output.id = id;
  output.finish = reason;
  output.error = std::move(error);
  output.prompt_tokens = request.prompt_tokens;
  output.cached_tokens = request.cached_tokens;
  output.output_tokens = request.output_tokens;
  request.sink(std::move(output));
}

}  // namespace refrain
