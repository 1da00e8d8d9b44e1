#include "runtime/coordinator/front.h"

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/bootstrap/text_files.h"
#include "runtime/coordinator/shutdown.h"
#include "runtime/front/remote_engine.h"

namespace refrain {
namespace {

// Beside the output threads one has the socket to the coordinator and what clients were given.
struct FrontProcess {
  IoContext io;
  IoThreads outputs{half_of_the_cores(), "output"};  // sinks hold connections: after the engine
  TextSide text;
  std::unique_ptr<Engine> engine;
};

Status open_engine(FrontOptions& options, FrontProcess& process) {
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig model, read_model(options.config));
  REFRAIN_ASSIGN_OR_RETURN(process.text, load_text(options.config, model));
  REFRAIN_ASSIGN_OR_RETURN(
      process.engine,
      front::open_remote_engine(options.config, model, process.text.tokenizer, process.io,
                                process.outputs.executors(), options.listen));
  return {};
}

void serve(FrontProcess& process) {
  process.outputs.start([&process] { process.io.stop(); });
  process.engine->start();
  try {
    process.io.run();
  } catch (...) {
    process.outputs.join();
    throw;
  }
  process.outputs.stop();
}

int keep_clients(FrontOptions& options, SignalHold& signals, EndingWatch& watch) {
  FrontProcess process;
  if (const Status opened = open_engine(options, process); !opened) return report(opened.error());
  Engine& engine = *process.engine;
  auto http = HttpSide::listen(engine, process.text, process.outputs, options.board_fd);
  if (!http) return report(http.error());
  const std::string url = (*http)->url();

  const auto strand = process.io.make_strand();
  Shutdown shutdown(engine, process.io, http->get(), watch, strand);
  shutdown.take_signals(options.parent);
  engine.on_state([&](GroupState state, const std::string& /*told by the coordinator*/) {
    if (state == GroupState::kReady)
      log::info("ready: {} serves {}", url, engine.config().served_model_names.front());
  });
  signals.release();
  end_with_parent(options.parent, process.io, strand, shutdown);
  log::info("listening on {}; waiting for a coordinator at {}", url, options.listen);
  serve(process);
  return kExitOk;
}

}  // namespace

int run_front(FrontOptions options) {
  return run_program(options.parent, [&options](SignalHold& signals, EndingWatch& watch) {
    return keep_clients(options, signals, watch);
  });
}

}  // namespace refrain
