#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace refrain {

void init_logging(const std::string& role, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(
      role, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ [%n] %v");
  const auto parsed = spdlog::level::from_str(level);
  const bool known = parsed != spdlog::level::off || level == "off";
  logger->set_level(known ? parsed : spdlog::level::info);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(logger);
  if (!known) spdlog::warn("unknown log level '{}', using info", level);
}

}  // namespace refrain
