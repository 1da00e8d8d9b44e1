#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace refrain {
namespace {

// Makes spdlog's registry before any thread begins. Debian's libspdlog is not built with
// ThreadSanitizer, which would not see its guard where two threads log first.
[[maybe_unused]] const spdlog::logger* const kFirstLogger = spdlog::default_logger_raw();

spdlog::level::level_enum spdlog_level(log::Level level) {
  switch (level) {
    case log::Level::kDebug:
      return spdlog::level::debug;
    case log::Level::kInfo:
      return spdlog::level::info;
    case log::Level::kWarning:
      return spdlog::level::warn;
    case log::Level::kError:
      return spdlog::level::err;
    case log::Level::kCritical:
      return spdlog::level::critical;
  }
  return spdlog::level::critical;
}

}  // namespace

void init_logging(const std::string& role, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(
      role, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ [%n] %v");
  const auto parsed = spdlog::level::from_str(level);
  const bool known = parsed != spdlog::level::off || level == "off";
  logger->set_level(known ? parsed : spdlog::level::info);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(logger);
  if (!known) log::warn("unknown log level '{}', using info", level);
}

void log::write(Level level, fmt::string_view format, fmt::format_args args) {
  spdlog::logger& logger = *spdlog::default_logger_raw();
  const auto as = spdlog_level(level);
  if (!logger.should_log(as)) return;
  logger.log(as, spdlog::string_view_t(fmt::vformat(format, args)));
}

}  // namespace refrain
