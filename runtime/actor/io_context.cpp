#include "runtime/actor/io_context.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/signal_set.hpp>

#include "runtime/actor/strand_executor.h"
#include "runtime/base/check.h"
#include "runtime/base/unique_handle.h"

namespace refrain {
namespace asio = boost::asio;

struct IoContext::State {
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
};

IoContext::IoContext() : state_(std::make_unique<State>()) {}
IoContext::~IoContext() = default;

std::shared_ptr<Executor> IoContext::make_strand() {
  return std::make_shared<StrandExecutor>(state_->context);
}

void IoContext::run() { state_->context.run(); }
void IoContext::stop() { state_->context.stop(); }
asio::io_context& IoContext::native() { return state_->context; }

namespace {

struct SignalWatch : std::enable_shared_from_this<SignalWatch> {
  SignalWatch(asio::io_context& io, std::shared_ptr<Executor> on, std::function<void(int)> call)
      : set(io), strand(std::move(on)), handler(std::move(call)) {}

  void wait() {
    set.async_wait([self = shared_from_this()](const boost::system::error_code& error, int number) {
      if (error) return;  // the context is being destroyed
      self->strand->post([self, number] { self->handler(number); });
      self->wait();
    });
  }

  asio::signal_set set;
  std::shared_ptr<Executor> strand;
  std::function<void(int)> handler;
};

// Reads a pipe line by line.
struct LineReader : std::enable_shared_from_this<LineReader> {
  static constexpr size_t kLongest = size_t{1} << 20;
  LineReader(asio::io_context& io, int fd, std::shared_ptr<Executor> on,
             std::function<void(std::string)> call)
      : pipe(io, fd), strand(std::move(on)), handler(std::move(call)) {}

  void read() {
    asio::async_read_until(
        pipe, asio::dynamic_buffer(text, kLongest), '\n',
        [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
          if (error) return;  // its writers are gone, or the context is
          std::string line = self->text.substr(0, bytes - 1);
          self->text.erase(0, bytes);
          self->strand->post(
              [self, line = std::move(line)]() mutable { self->handler(std::move(line)); });
          self->read();
        });
  }

  asio::posix::stream_descriptor pipe;
  std::string text;
  std::shared_ptr<Executor> strand;
  std::function<void(std::string)> handler;
};

void add_signals(asio::signal_set& set, const std::vector<int>& signals) {
  for (const int number : signals) {
    boost::system::error_code error;
    set.add(number, error);
    REFRAIN_CHECK(!error, "signal {} cannot be handled: {}", number, error.message());
  }
}

}  // namespace

void IoContext::on_lines(int fd, std::shared_ptr<Executor> strand,
                         std::function<void(std::string)> handler) {
  std::make_shared<LineReader>(state_->context, fd, std::move(strand), std::move(handler))->read();
}

void IoContext::on_signals(const std::vector<int>& signals, std::shared_ptr<Executor> strand,
                           std::function<void(int)> handler) {
  auto watch =
      std::make_shared<SignalWatch>(state_->context, std::move(strand), std::move(handler));
  add_signals(watch->set, signals);
  watch->wait();
}

void IoContext::on_signals_for_good(const std::vector<int>& signals,
                                    std::shared_ptr<Executor> strand,
                                    std::function<void(int)> handler) {
  // Never destroyed: the default action comes back with the end of the last set that has a signal.
  static auto* const nowhere = new asio::io_context;
  static auto* const kept = new asio::signal_set(*nowhere);
  add_signals(*kept, signals);
  on_signals(signals, std::move(strand), std::move(handler));
}

bool IoContext::on_process_exit(int64_t pid, std::shared_ptr<Executor> strand,
                                std::function<void()> handler) {
  if (pid <= 0) return false;
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!process) return false;
  auto descriptor = std::make_shared<asio::posix::stream_descriptor>(state_->context);
  boost::system::error_code error;
  descriptor->assign(process.get(), error);
  if (error) return false;
  process.release();
  // Readable once the process is a zombie or gone; the descriptor goes with the handler.
  descriptor->async_wait(asio::posix::stream_descriptor::wait_read,
                         [descriptor, strand = std::move(strand),
                          handler = std::move(handler)](const boost::system::error_code& failed) {
                           if (!failed) strand->post(handler);
                         });
  return true;
}

bool IoContext::on_process_exit(const ProcessIdentity& process,
                                const std::shared_ptr<Executor>& strand,
                                std::function<void()> handler) {
  auto called = std::make_shared<bool>(false);  // on the strand only
  const auto once = [called, handler = std::move(handler)] {
    if (!std::exchange(*called, true)) handler();
  };
  const bool watched = on_process_exit(process.pid, strand, once);
  // Asked after the descriptor was opened: what has the pid now is what is watched.
  const auto start = process_start(process.pid);
  if (!start || *start == process.start) return watched;
  strand->post(once);
  return true;
}

}  // namespace refrain
