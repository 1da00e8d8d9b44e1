// refrain: serve, generate, bench, plan, keygen.

#include <cstdio>
#include <exception>

#include "apps/refrain/commands.h"
#include "runtime/base/build_info.h"
#include "runtime/base/last_error.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"

namespace {

constexpr const char* kHelp =
    "refrain: serves large language models from several processes\n"
    "\n"
    "  refrain serve MODEL [options]      coordinator and workers on this machine, OpenAI API\n"
    "  refrain generate [options]         prompts in, text out, no server\n"
    "  refrain bench KIND [options]       decode, prefill, serve, capture, dispatch;\n"
    "                                     gemm, attention, all-reduce, load\n"
    "  refrain bench serve --base-url URL load on any server that speaks OpenAI's API\n"
    "  refrain plan FILE.json             explain which graphs a configuration captures and runs\n"
    "  refrain keygen DIR [WORKER...]     keys for workers that connect over tcp://\n"
    "  refrain version\n"
    "\n"
    "`refrain COMMAND --help` lists a command's options.\n";

int run(const std::string& command, const std::vector<std::string>& arguments) {
  using namespace refrain;
  if (command == "serve") return serve_command(arguments);
  if (command == "generate") return generate_command(arguments);
  if (command == "bench") return bench_command(arguments);
  if (command == "plan") return plan_command(arguments);
  if (command == "keygen") return keygen_command(arguments);
  if (command == "version" || command == "--version") {
    std::printf("%s\n", build_id().c_str());
    return kExitOk;
  }
  const bool asked = command == "help" || command == "--help" || command == "-h";
  if (!asked && !command.empty()) {
    std::fprintf(
        stderr,
        "unknown command '%s'; serve, generate, bench, plan, keygen and version are known\n",
        command.c_str());
  }
  std::fputs(kHelp, asked ? stdout : stderr);
  return asked ? kExitOk : kExitConfig;
}

}  // namespace

int main(int argc, char** argv) {
  refrain::end_by_what_is_lacking();
  refrain::init_logging("refrain");
  try {
    return run(argc > 1 ? argv[1] : "", {argv + (argc > 1 ? 2 : 1), argv + argc});
  } catch (const std::exception& error) {
    return refrain::end_by(error);
  }
}
