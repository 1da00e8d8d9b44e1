#pragma once
// Live requests of an engine without groups, whose ends are kept.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/actor/manual_executor.h"
#include "runtime/engine/live_requests.h"
#include "runtime/engine/text_outputs.h"
#include "runtime/text/tokenizer.h"

namespace refrain::testing {

class LiveRequestsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    live.connect(std::make_unique<TextOutputs>(
        std::vector{outputs_on},
        std::make_shared<const text::Tokenizer>(
            *text::Tokenizer::load("tests/fixtures/models/qwen2")),
        [](RequestId) {}, [] {}));
  }
  void enter(RequestId id, int32_t group = LiveRequest::kNoGroup) {
    GenerateRequest request;
    request.prompt = {1, 2, 3};
    live.open(id, request, [this, id](RequestOutput output) {
      if (output.finish == FinishReason::kNone) return;
      finishes[id] = output.finish;
      if (output.error) errors[id] = output.error->message;
    });
    live.enter(id, 3, {-1, digest_of(request.prompt), 0, 0, 0, group});
  }
  static TokenEvent event(RequestId id, TokenId token, StopCause stop = StopCause::kNone) {
    TokenEvent event;
    event.id = id;
    event.token = token;
    event.stop = stop;
    return event;
  }

  ManualScheduler scheduler;
  std::shared_ptr<Executor> executor = scheduler.make_executor("engine");
  std::shared_ptr<Executor> outputs_on = scheduler.make_executor("output");
  RequestBoard stats;
  std::vector<RequestId> ended;
  LiveRequests live{*executor, stats, nullptr,
                    [this](RequestId id, const LiveRequest&) { ended.push_back(id); }};
  std::map<RequestId, FinishReason> finishes;
  std::map<RequestId, std::string> errors;
};

}  // namespace refrain::testing
