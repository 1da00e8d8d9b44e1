// Holds the template interpreter against jinja2 on the ~70 real chat templates of the fixtures:
// where jinja2 renders, the text is the same; where it fails, rendering here fails too, and a
// template's own refusal (raise_exception) says the same.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/text/jinja/template.h"
#include "tests/oracle/fixtures.h"

namespace refrain::jinja {
namespace {

using nlohmann::ordered_json;

// NOW of template_cases.py, in local time as the oracle's is.
RenderOptions options() {
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

ordered_json variables_of(const ordered_json& input) {
  ordered_json variables = {
      {"messages", ordered_json::array()}, {"tools", nullptr},   {"documents", nullptr},
      {"add_generation_prompt", false},    {"bos_token", "<s>"}, {"eos_token", "</s>"}};
  for (const auto& [name, value] : input.items()) variables[name] = value;
  return variables;
}

std::string first_difference(const std::string& got, const std::string& expected) {
  size_t at = 0;
  while (at < got.size() && at < expected.size() && got[at] == expected[at]) ++at;
  const size_t from = at < 60 ? 0 : at - 60;
  return "at byte " + std::to_string(at) + "\n  got      [" + got.substr(from, 140) +
         "]\n  expected [" + expected.substr(from, 140) + "]";
}

void compare(const std::string& file, size_t number, const Template& compiled,
             const ordered_json& test_case) {
  SCOPED_TRACE(file + ", case " + std::to_string(number));
  const auto text = compiled.render(variables_of(test_case["input"]), options());
  if (test_case.contains("output")) {
    const auto expected = test_case["output"].get<std::string>();
    if (!text) {
      ADD_FAILURE() << "jinja2 renders it, we fail: " << text.error().message;
    } else if (*text != expected) {
      ADD_FAILURE() << first_difference(*text, expected);
    }
    return;
  }
  const auto error = test_case["error"].get<std::string>();
  if (text) {
    ADD_FAILURE() << "jinja2 fails (" << error << "), we render";
  } else if (test_case["raised"].get<bool>()) {
    EXPECT_NE(text.error().message.find(error), std::string::npos)
        << text.error().message << " should say " << error;
  }
}

TEST(TemplateOracle, RendersRealTemplatesAsJinja2) {
  ASSERT_FALSE(text::fixtures_dir().empty()) << text::how_to_make_fixtures();
  const auto names = text::fixture_names("templates");
  ASSERT_GE(names.size(), 70U);
  size_t rendered = 0;
  for (const std::string& name : names) {
    const auto fixture =
        ordered_json::parse(text::read_file(text::fixtures_dir() / "templates" / (name + ".json")));
    const auto compiled = Template::compile(fixture["template"].get<std::string>(), name);
    if (!compiled) {
      ADD_FAILURE() << compiled.error().message;
      continue;
    }
    for (size_t i = 0; i < fixture["cases"].size(); ++i) {
      compare(name, i, *compiled, fixture["cases"][i]);
      if (fixture["cases"][i].contains("output")) ++rendered;
    }
  }
  EXPECT_GE(rendered, 1400U);
}

}  // namespace
}  // namespace refrain::jinja
