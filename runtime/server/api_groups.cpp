// The routes by which an operator drains a server, or drains, restarts and gives another role to
// single groups while the others serve. Off without --control-key, which they need.

#include "runtime/config/group_options.h"
#include "runtime/server/api_response.h"
#include "runtime/server/api_server.h"

namespace refrain {

Result<std::optional<GroupOrder>> ApiServer::read_group_order(const HttpRequest& request,
                                                              GroupOrder::What what) const {
  Json body = Json::object();
  if (!request.body.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(body, parse_json(request.body));
  }
  if (!body.is_object()) return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  for (const auto& [name, value] : body.items()) {
    const bool known = name == "group" || (name == "role" && what == GroupOrder::What::kRestart);
    if (!known) return fail_field(name, "{} is no field of {}", name, request.path);
  }
  const auto group = body.find("group");
  if (group == body.end()) return std::optional<GroupOrder>();
  if (!group->is_number_integer() || *group < 0 || *group >= engine_.config().num_groups())
    return fail_field("group", "group must be a number from 0 to {}",
                      engine_.config().num_groups() - 1);
  GroupOrder order{group->get<int32_t>(), what};
  if (const auto role = body.find("role"); role != body.end()) {
    if (!role->is_string())
      return fail_field("role", "role must be a text: both, prefill or decode");
    REFRAIN_ASSIGN_OR_RETURN(order.role, parse_role(role->get<std::string>()));
  }
  return order;
}

// Answers when it is done, which may be after as long as --drain-timeout says.
void ApiServer::control_group(const Exchange& exchange, const GroupOrder& order) const {
  engine_.control_group(order, [&engine = engine_, metrics = metrics_, exchange,
                                order](const Status& status) {
    using What = GroupOrder::What;
    const char* done = order.what == What::kDrain ? "drained" : "ready";
    HttpReply reply{200, "application/json", dump({{"group", order.group}, {"status", done}}), {}};
    if (!status) reply = error_reply(status.error(), engine);
    metrics->count_http(reply.status);
    exchange->reply(std::move(reply));
  });
}

void ApiServer::post_drain(HttpRequest& request, const Exchange& exchange) {
  const auto order = read_group_order(request, GroupOrder::What::kDrain);
  if (!order) return reply_error(exchange, order.error());
  if (*order) return control_group(exchange, **order);
  if (!drain_)
    return reply_error(exchange, {ErrorCode::kUnavailable, "this server cannot end itself", {}});
  if (!draining_.exchange(true)) drain_();
  reply_json(exchange, {{"status", "draining"}}, 202);
}

void ApiServer::post_resume(HttpRequest& request, const Exchange& exchange) {
  const auto order = read_group_order(request, GroupOrder::What::kResume);
  if (!order) return reply_error(exchange, order.error());
  if (!*order)
    return reply_error(exchange, {ErrorCode::kInvalidArgument, "group is missing", "group"});
  control_group(exchange, **order);
}

void ApiServer::post_restart(HttpRequest& request, const Exchange& exchange) {
  const auto order = read_group_order(request, GroupOrder::What::kRestart);
  if (!order) return reply_error(exchange, order.error());
  if (!*order)
    return reply_error(exchange, {ErrorCode::kInvalidArgument, "group is missing", "group"});
  control_group(exchange, **order);
}

}  // namespace refrain
