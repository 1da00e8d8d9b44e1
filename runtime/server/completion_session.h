#pragma once
// One completion or chat request on its way: prompts × n choices submitted to the engine, their
// outputs collected or streamed. Kept alive by the sinks it gives the engine; outputs arrive on the
// output thread that has the connection too, so that a token's way ends without another hand-over.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/grammar/grammar_helper.h"
#include "runtime/server/answer_writer.h"
#include "runtime/server/api_keys.h"
#include "runtime/server/api_request.h"
#include "runtime/server/api_response.h"
#include "runtime/server/http_server.h"
#include "runtime/server/metrics.h"
#include "runtime/server/text_work.h"

namespace refrain {

class CompletionSession : public std::enable_shared_from_this<CompletionSession> {
 public:
  CompletionSession(ApiRequest request, AnswerHead head, Engine& engine,
                    std::shared_ptr<const text::Tokenizer> tokenizer,
                    std::shared_ptr<Metrics> metrics, std::shared_ptr<HttpExchange> exchange,
                    KeyLease lease, std::weak_ptr<TextWork> work, const MakeWriter& make_writer,
                    std::shared_ptr<GrammarHelper> grammars = nullptr);

  // Submits every choice; `prompts` are token ids, one per prompt. A refusal cancels what was
  // submitted and answers with the error.
  void start(std::vector<std::vector<TokenId>> prompts);

 private:
  struct Choice {
    ChoiceText text;  // collected (whole answers)
    RequestId id = 0;
    int64_t sent_characters = 0;  // streams
    bool opened = false;
    std::optional<ChatAnswer> answer;  // of chats whose text is read
  };

  // False: it has answered with a refusal.
  bool make_choices(const std::vector<std::vector<TokenId>>& prompts);
  Result<RequestId> submit(size_t index, std::vector<TokenId> prompt);
  void on_output(size_t index, RequestOutput output);
  void collect_output(Choice& choice, RequestOutput output);
  void stream_output(Choice& choice, RequestOutput output);
  void begin_stream();
  void keep_alive();
  text::AnswerFormat answer_format() const;
  bool reads_answers() const;
  bool is_long() const;
  void finish();
  void fail_all(const Error& error);
  void end();
  void cancel_rest();

  const ApiRequest request_;
  const AnswerHead head_;
  Engine& engine_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  const std::unique_ptr<AnswerWriter> writer_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<GrammarHelper> grammars_;  // hears of one that turned out too slow
  KeyLease lease_;  // one of the key's requests for each choice, until the answer ends
  const std::weak_ptr<TextWork> work_;  // which writes long answers
  std::mutex mutex_;                    // sinks, submission and disconnect meet here
  std::vector<Choice> choices_;
  Usage usage_;
  RequestTimes times_;
  // With the first chunk, or a comment before it: errors until then have a status of their own.
  bool stream_begun_ = false;
  size_t unfinished_ = 0;
  bool ended_ = false;
};

}  // namespace refrain
