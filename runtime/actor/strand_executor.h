#pragma once
// The real Executor: an Asio strand and its timers. Private to runtime/actor (made by
// IoContext::make_strand). Must be dropped before its IoContext is.

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <mutex>
#include <unordered_map>

#include "runtime/actor/executor.h"

namespace refrain {

class StrandExecutor final : public Executor {
 public:
  explicit StrandExecutor(boost::asio::io_context& context);
  ~StrandExecutor() override;

  void post(std::function<void()> task) override;
  TimerId post_after(Duration delay, std::function<void()> task) override;
  void cancel(TimerId timer) override;
  const Clock& clock() const override { return steady_clock(); }

 private:
  struct Timers;
  boost::asio::io_context& context_;
  boost::asio::strand<boost::asio::io_context::executor_type> strand_;
  std::shared_ptr<Timers> timers_;
};

}  // namespace refrain
