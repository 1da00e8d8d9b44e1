#include "runtime/server/control_routes.h"

#include "runtime/config/group_options.h"

namespace refrain {

void ControlRoutes::add_to(RouteTable& table) {
  const auto add = [&](const char* path, auto handle) {
    table.add(path, {.method = "POST", .handle = handle, .access = RouteAccess::kOperator});
  };
  const auto controls = [this](GroupOrder::What what) {
    return [this, what](HttpRequest& request, const Exchange& exchange) {
      control(request, exchange, what);
    };
  };
  add("/drain", std::bind_front(&ControlRoutes::drain, this));
  add("/resume", controls(GroupOrder::What::kResume));
  add("/restart", controls(GroupOrder::What::kRestart));
}

Result<std::optional<GroupOrder>> ControlRoutes::read_order(const HttpRequest& request,
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
void ControlRoutes::give(const Exchange& exchange, const GroupOrder& order) const {
  engine_.control_group(order, [replies = replies_, exchange, order](const Status& status) {
    if (!status) return replies.error(exchange, status.error());
    const char* done = order.what == GroupOrder::What::kDrain ? "drained" : "ready";
    replies.json(exchange, {{"group", order.group}, {"status", done}});
  });
}

void ControlRoutes::drain(HttpRequest& request, const Exchange& exchange) {
  const auto order = read_order(request, GroupOrder::What::kDrain);
  if (!order) return replies_.error(exchange, order.error());
  if (*order) return give(exchange, **order);
  if (!drain_.drain())
    return replies_.error(exchange, {ErrorCode::kUnavailable, "this server cannot end itself", {}});
  replies_.json(exchange, {{"status", "draining"}}, 202);
}

void ControlRoutes::control(HttpRequest& request, const Exchange& exchange, GroupOrder::What what) {
  const auto order = read_order(request, what);
  if (!order) return replies_.error(exchange, order.error());
  if (!*order)
    return replies_.error(exchange, {ErrorCode::kInvalidArgument, "group is missing", "group"});
  give(exchange, **order);
}

}  // namespace refrain
