#include "runtime/text/jinja/template.h"

#include "runtime/base/json.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/interpreter.h"
#include "runtime/text/jinja/parser.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

// Looks through a tree for filters and tests that do not exist.
class NameCheck {
 public:
  std::vector<std::string> found;

  void block(const Block& block) {
    for (const auto& statement : block) {
      for (const auto* expr : {&statement->expr, &statement->test, &statement->filter})
        visit(expr->get());
      for (const auto& [test, body] : statement->branches) {
        visit(test.get());
        this->block(body);
      }
      for (const auto& [target, value] : statement->assignments) visit(value.get());
      for (const auto& parameter : statement->parameters) visit(parameter.fallback.get());
      this->block(statement->body);
      this->block(statement->otherwise);
    }
  }

 private:
  void visit(const Expr* expr) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kFilter && !is_known_filter(expr->name))
      found.push_back(fmt::format("line {}: filter '{}'", expr->line, expr->name));
    if (expr->kind == ExprKind::kTest && !is_known_test(expr->name))
      found.push_back(fmt::format("line {}: test '{}'", expr->line, expr->name));
    visit(expr->target.get());
    for (const auto& arg : expr->args) visit(arg.get());
    for (const auto& [name, value] : expr->named) visit(value.get());
    visit(expr->star.get());
    visit(expr->double_star.get());
  }
};

}  // namespace

struct Template::Tree {
  std::string name;
  Block block;
  std::vector<std::string> unsupported;
};

Result<Template> Template::compile(std::string_view source, const std::string& name) {
  if (source.size() > kMaxSourceBytes)
    return fail(ErrorCode::kInvalidArgument, "{}: longer than {} bytes", name, kMaxSourceBytes);
  if (!text::is_valid_utf8(source))
    return fail(ErrorCode::kInvalidArgument, "{}: not valid UTF-8", name);
  try {
    auto tree = std::make_shared<Tree>();
    tree->name = name;
    tree->block = parse(source);
    NameCheck check;
    check.block(tree->block);
    tree->unsupported = std::move(check.found);
    return Template(std::move(tree));
  } catch (const TemplateError& error) {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", name, error.what());
  }
}

Result<std::string> Template::render(const nlohmann::ordered_json& variables,
                                     const RenderOptions& options) const {
  try {
    const Value values = from_json(variables);
    if (values.as_dict() == nullptr)
      return fail(ErrorCode::kInvalidArgument, "{}: the variables must be an object", tree_->name);
    Rendering rendering{.budget = Budget({options.max_steps, options.max_output_bytes}),
                        .now = options.now};
    return Interpreter(rendering, values).render(tree_->block);
  } catch (const TemplateError& error) {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", tree_->name, error.what());
  }
}

const std::vector<std::string>& Template::unsupported() const { return tree_->unsupported; }

}  // namespace refrain::jinja
