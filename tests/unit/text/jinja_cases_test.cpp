// Every construct of the template language against what jinja2 made of it
// (tests/golden/text/jinja_cases.json, written by tests/oracle/make_jinja_cases.py).
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/text/jinja/template.h"

namespace refrain::jinja {
namespace {

using nlohmann::ordered_json;

RenderOptions fixed_time() {
  std::tm local{};
  local.tm_year = 126;
  local.tm_mon = 2;
  local.tm_mday = 4;
  local.tm_hour = 15;
  local.tm_min = 6;
  local.tm_sec = 7;
  local.tm_isdst = -1;
  RenderOptions options;
  options.now = std::chrono::system_clock::from_time_t(std::mktime(&local));
  return options;
}

Result<std::string> compile_and_render(const std::string& source, const ordered_json& variables) {
  const auto compiled = Template::compile(source, "case");
  if (!compiled) return forward_error(compiled.error());
  return compiled->render(variables, fixed_time());
}

TEST(JinjaCases, RenderAsJinja2OrFailAsItDoes) {
  std::ifstream file("tests/golden/text/jinja_cases.json");
  ASSERT_TRUE(file) << "run from the repository's root";
  const auto golden = ordered_json::parse(file);
  ordered_json variables = golden["variables"];
  for (const char* name : {"messages", "tools", "documents"}) variables[name] = nullptr;
  variables["bos_token"] = "<s>";
  ASSERT_GE(golden["cases"].size(), 400U);
  for (const auto& test_case : golden["cases"]) {
    const auto source = test_case["template"].get<std::string>();
    const auto text = compile_and_render(source, variables);
    if (test_case.contains("refused") || test_case.contains("error")) {
      EXPECT_FALSE(text) << source << "\n rendered as [" << text.value_or("")
                         << "], expected error " << test_case.value("error", "(refused here)");
    } else if (!text) {
      ADD_FAILURE() << source << "\n failed: " << text.error().message << ", expected ["
                    << test_case["output"].get<std::string>() << "]";
    } else {
      EXPECT_EQ(*text, test_case["output"].get<std::string>()) << source;
    }
  }
}

}  // namespace
}  // namespace refrain::jinja
