// ask MODEL PROMPT [OPTIONS...]: completes a prompt and prints it as it comes. Ctrl-C ends the
// answer.

#include <refrain/engine.h>

#include <csignal>
#include <iostream>

namespace {

volatile std::sig_atomic_t interrupted = 0;

// A string as JSON writes it.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[c >> 4];
      out += kDigits[c & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

int ask(const std::string& model, const std::string& prompt, std::vector<std::string> options) {
  options.insert(options.begin(), {"--model", model});
  refrain::Engine engine(options);
  while (!engine.wait_ready(std::chrono::milliseconds(100))) {
    if (interrupted) return 130;
  }
  const auto request =
      engine.add("{\"prompt\": " + quoted(prompt) + ", \"max_tokens\": 16, \"temperature\": 0}");
  for (bool cancelled = false;;) {
    for (const auto& output : engine.poll(std::chrono::milliseconds(100))) {
      std::cout << output.text << std::flush;
      if (!output.finished()) continue;
      std::cout << "\n[" << request.prompt_ids.size() << " tokens in; " << output.finish_reason
                << "]\n";
      return output.error.empty() ? 0 : 1;
    }
    if (interrupted && !cancelled) {
      engine.cancel(request.id);
      cancelled = true;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: ask MODEL PROMPT [OPTIONS...]\n";
    return 64;
  }
  std::signal(SIGINT, [](int) { interrupted = 1; });
  try {
    return ask(argv[1], argv[2], {argv + 3, argv + argc});
  } catch (const refrain::EngineError& error) {
    std::cerr << error.what() << "\n";
    return error.kind() == refrain::EngineError::Kind::kInvalid ? 64 : 70;
  }
}
