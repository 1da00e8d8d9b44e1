#include "runtime/coordinator/front.h"

#include <signal.h>
#include <unistd.h>

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"
#include "runtime/base/process_limits.h"
#include "runtime/base/report.h"
#include "runtime/bootstrap/text_files.h"
#include "runtime/coordinator/shutdown.h"
#include "runtime/front/remote_engine.h"
#include "runtime/supervise/signal_hold.h"

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

int keep_clients(FrontOptions options) {
  SignalHold signals;
  ::signal(SIGPIPE, SIG_IGN);  // a supervisor or a log that is gone is an error of write()
  const int64_t parent = options.parent;
  EndingWatch watch(static_cast<pid_t>(parent), kLastThreads, [parent] {
    log::critical("a thread did not end in time: the process ends without it");
    clear_after(parent);
    ::_exit(kExitInternal);
  });
  FrontProcess process;
  if (const Status opened = open_engine(options, process); !opened) return report(opened.error());
  Engine& engine = *process.engine;
  auto http = HttpSide::listen(engine, process.text, process.outputs, options.board_fd);
  if (!http) return report(http.error());
  const std::string url = (*http)->url();

  const auto strand = process.io.make_strand();
  Shutdown shutdown(engine, process.io, http->get(), watch, strand);
  process.io.on_signals({SIGINT, SIGTERM}, strand,
                        [&shutdown](int number) { shutdown.on_signal(number); });
  (*http)->drain_by(
      parent, [&shutdown, strand] { strand->post([&shutdown] { shutdown.on_signal(SIGTERM); }); });
  engine.on_state([&](GroupState state, const std::string& /*told by the coordinator*/) {
    if (state == GroupState::kReady)
      log::info("ready: {} serves {}", url, engine.config().served_model_names.front());
  });
  signals.release();
  end_with_parent(parent, process.io, strand, shutdown);
  log::info("listening on {}; waiting for a coordinator at {}", url, options.listen);
  serve(process);
  return kExitOk;
}

}  // namespace

int run_front(FrontOptions options) {
  survive_file_size_limit();
  if (const Status raised = raise_descriptor_limit(kLeastDescriptors); !raised) {
    return report(raised.error());
  }
  const int64_t parent = options.parent;
  const int code = keep_clients(std::move(options));
  clear_after(parent);
  return code;
}

}  // namespace refrain
