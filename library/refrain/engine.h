#pragma once
// Refrain as a library: an engine in this process that runs a model on worker processes of its own,
// without a server. Link the CMake target refrain::Engine (docs/library.md).
//
//   refrain::Engine engine({"--model", "path/to/model"});
//   engine.wait_ready();
//   engine.add(R"({"prompt": "The capital of France is", "max_tokens": 8})");
//   for (bool done = false; !done;)
//     for (const refrain::EngineOutput& output : engine.poll()) {
//       std::cout << output.text;
//       done = output.finished();
//     }
//
// Every function may be called from any thread. Whatever goes wrong is an EngineError. Signals and
// their handlers are left as they are; a program that forks should do so before it makes an engine.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#define REFRAIN_EXPORT __attribute__((visibility("default")))

namespace refrain {
class LocalSession;

inline namespace v1 {

class REFRAIN_EXPORT EngineError : public std::runtime_error {
 public:
  enum class Kind : uint8_t {
    kInvalid,      // an option or a request is wrong; the message is that of the command line
    kUnavailable,  // the engine is not ready yet, is busy or has lost its workers for good
    kStopped,      // stop() was called
    kInternal,     // a defect
  };
  EngineError(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

struct EngineToken {
  int32_t id = 0;
  std::string text;   // U+FFFD for what is no whole character
  float logprob = 0;  // where the request asked for `logprobs`, as the next
  struct Likely {
    int32_t id = 0;
    std::string text;
    float logprob = 0;
  };
  std::vector<Likely> top;  // the most likely tokens at this place, most likely first
  int32_t rank = 0;         // of a prompt's token, 1: the most likely; 0: not told
};

// One piece of an answer. The outputs of a request come in order; the last one is finished().
struct EngineOutput {
  uint64_t id = 0;                    // of the request
  std::vector<EngineToken> tokens;    // new ones
  std::string text;                   // new text, whole characters
  std::string finish_reason;          // empty, or stop, length, abort, error
  std::string stop_reason;            // the stop string that matched; may be empty
  std::optional<int32_t> stop_token;  // the token of stop_token_ids that came
  std::string error;                  // of the finish reason error
  int64_t cached_tokens = 0;          // of the prompt, found in the prefix cache
  // With `prompt_logprobs`, of one output: the prompt's tokens from the second on.
  std::vector<EngineToken> prompt;
  bool finished() const { return !finish_reason.empty(); }
};

struct EngineRequest {
  uint64_t id = 0;
  std::vector<int32_t> prompt_ids;  // the prompt's tokens
};

class REFRAIN_EXPORT Engine {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds kForever{INT32_MAX};

  // Options are the words of a command line, as `refrain generate` takes them: {"--model",
  // "path/or/name", "--tensor-parallel-size", "2"}. Bad ones throw kInvalid. The workers then start
  // by themselves.
  explicit Engine(const std::vector<std::string>& options);
  ~Engine();  // stops
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Waits until the workers are ready; false: not within the timeout. Throws if they never will be.
  bool wait_ready(Milliseconds timeout = kForever);

  // Takes a request as a JSON object: one of `prompt`, `prompt_ids` and `messages`, and any
  // sampling field of OpenAI's API or vLLM (max_tokens, temperature, top_p, top_k, seed, stop,
  // logprobs, …); `model` may name an adapter that load_adapter() loaded. A request that is wrong
  // throws kInvalid. Many requests run at once, as one batch.
  EngineRequest add(const std::string& request);

  // What has arrived since the last call, of all requests. Waits for the first output up to the
  // timeout; none: time is over. Throws when the workers are lost for good.
  std::vector<EngineOutput> poll(Milliseconds timeout = kForever);

  // Makes a LoRA adapter, a directory in PEFT's form, one that requests may name, unless it is that
  // already. Needs the option --enable-lora. False: not within the timeout; call it again to wait
  // on. A broken adapter throws kInvalid.
  bool load_adapter(const std::string& name, const std::string& path,
                    Milliseconds timeout = kForever);

  // Takes it out again when its last request has ended; false as above. Others find it no more.
  bool unload_adapter(const std::string& name, Milliseconds timeout = kForever);

  // Ends a request early: its last output has the finish reason abort. An id that has ended is
  // ignored.
  void cancel(uint64_t id);

  // Ends the workers and waits for them; requests that still run stay unfinished. Calls that wait
  // in other threads throw kStopped.
  void stop();

 private:
  std::unique_ptr<LocalSession> session_;
};

}  // namespace v1
}  // namespace refrain
