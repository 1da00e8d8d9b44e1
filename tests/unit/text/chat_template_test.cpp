#include "runtime/text/chat_template.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/base/json.h"
#include "tests/temporary_directory.h"

namespace refrain::text {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

ordered_json conversation() {
  return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"add_generation_prompt", true}};
}

ChatTemplate compile(std::string_view source) {
  auto compiled = ChatTemplate::from_source(source);
  if (!compiled) throw std::runtime_error(compiled.error().message);
  return std::move(*compiled);
}

std::string error_of(std::string_view source, const ordered_json& request = conversation(),
                     const ChatTemplateOptions& options = {}) {
  const auto compiled = ChatTemplate::from_source(source);
  if (!compiled) return compiled.error().message;
  const auto text = compiled->render(request, options);
  return text ? "" : text.error().message;
}

using ModelDir = tests::TemporaryDirectory;

TEST(ChatTemplate, ReadsTemplateAndTokensOfTheModel) {
  const ModelDir dir;
  dir.write("tokenizer_config.json",
            R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
                "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  const auto loaded = ChatTemplate::load(dir.path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->render(conversation()).value_or("failed"), "<s>Hi</s>");
  dir.write("chat_template.jinja", "file: {{ messages[0].content }}");
  EXPECT_EQ(ChatTemplate::load(dir.path())->render(conversation()).value_or("failed"), "file: Hi");
}

TEST(ChatTemplate, DeveloperIsSystemWhereTheTemplateDoesNotKnowIt) {
  const ordered_json request = {{"messages", {{{"role", "developer"}, {"content", "Be brief."}}}}};
  EXPECT_EQ(compile("{{ messages[0].role }}").render(request).value_or("failed"), "system");
  EXPECT_EQ(compile("{# developer #}{{ messages[0].role }}").render(request).value_or("failed"),
            "developer");
}

TEST(ChatTemplate, ChoosesAmongNamedTemplates) {
  const ModelDir dir;
  dir.write("tokenizer_config.json",
            R"({"chat_template": [{"name": "default", "template": "plain"},
                                  {"name": "tool_use", "template": "tools"}]})");
  const auto loaded = ChatTemplate::load(dir.path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  auto request = conversation();
  EXPECT_EQ(loaded->render(request).value_or("failed"), "plain");
  request["tools"] = {{{"type", "function"}}};
  EXPECT_EQ(loaded->render(request).value_or("failed"), "tools");
}

TEST(ChatTemplate, SaysThatAModelHasNone) {
  const ModelDir dir;
  const auto loaded = ChatTemplate::load(dir.path());
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kNotFound);
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  auto request = conversation();
  request["tools"] = {{{"z", 1}, {"a", 2}}};
  EXPECT_EQ(compile("{{ tools | tojson }}").render(request).value_or("failed"),
            R"([{"z": 1, "a": 2}])");
}

TEST(ChatTemplate, GivesReasoningUnderItsUsualName) {
  auto request = conversation();
  request["messages"][0]["reasoning"] = "hm";
  EXPECT_EQ(compile("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")
                .render(request)
                .value_or("failed"),
            "hmhm");
}

TEST(ChatTemplate, PassesWhatTheTemplateRefuses) {
  EXPECT_THAT(error_of("\n{{ raise_exception('roles must alternate') }}"),
              HasSubstr("line 2: roles must alternate"));
  EXPECT_THAT(error_of("{{ messages }}", {{"messages", 3}}), HasSubstr("'messages'"));
  EXPECT_THAT(error_of("{{ messages }}", {{"messages", {1}}}), HasSubstr("must be an object"));
}

TEST(ChatTemplate, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(error_of("a\n{% include 'x' %}"), HasSubstr("line 2: the tag '{% include %}'"));
  EXPECT_THAT(error_of("{% for a in b recursive %}{% endfor %}"), HasSubstr("'recursive'"));
  const auto compiled = compile("{% if no %}{{ 1 | groupby('a') is nosuch }}{% endif %}");
  EXPECT_THAT(compiled.unsupported(),
              testing::UnorderedElementsAre("line 1: filter 'groupby'", "line 1: test 'nosuch'"));
}

// Found by tests/fuzz: it ended the process.
TEST(ChatTemplate, R14_ACountThatIsNoIntegerIsAnError) {
  for (const char* count : {"'user'", "1.5", "[]", "nobody"})
    EXPECT_THAT(error_of(fmt::format("{{{{ 'aa' | replace('a', 'b', {}) }}}}", count)),
                HasSubstr("'count' must be an integer"));
}

TEST(ChatTemplate, EndsWhatRunsTooLong) {
  const char* forever =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(forever), HasSubstr("more than 5000000 steps"));
  EXPECT_THAT(error_of("{% for a in range(9) %}xxxx{% endfor %}", conversation(),
                       {.max_steps = 1000, .max_output_bytes = 20, .now = {}}),
              HasSubstr("more than 20 bytes"));
}

TEST(ChatTemplate, EndsWhatGrowsTooLarge) {
  EXPECT_THAT(error_of("{{ 'x' * 99999999999 }}"), HasSubstr("bytes of text"));
  EXPECT_THAT(error_of("{% set ns = namespace(s='x') %}{% for i in range(99) %}"
                       "{% set ns.s = ns.s + ns.s %}{% endfor %}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(error_of("{% set s = 'x' * 9999999 %}{{ s.replace('x', s) }}"),
              HasSubstr("too long"));
  EXPECT_THAT(error_of("{{ '%999999d' % 1 }}"), HasSubstr("too large"));
  EXPECT_THAT(error_of("{% set ns = namespace(l=[]) %}{% for i in range(999) %}"
                       "{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% for i in range(999) %}"
                       "{% set ns.me = ns %}{% endfor %}"),
              HasSubstr("nested too deeply"));
}

// R-14: each of these makes at least 10,000 items in one step, 99 times; what else it
// takes is within the limit. Made 99,999 times they kept gigabytes, or ran for minutes.
TEST(ChatTemplate, R14_EveryItemThatIsMadeIsPaidFor) {
#ifdef REFRAIN_TSAN
  GTEST_SKIP() << "one thread renders, through a million steps each";
#endif
  ordered_json request = conversation();
  for (int i = 0; i < 2'000; ++i) request["tools"][0]["key " + std::to_string(i)] = i;
  const std::string list = "{% set b = [0] * 100000 %}", text = "{% set s = 'a ' * 100000 %}";
  const std::vector<std::pair<std::string, std::string>> loops = {
      {list, "b | list"},
      {list, "b[:]"},
      {"", "range(99999)"},
      {text, "s | list"},
      {text, "s.split()"},
      {text, "s.split(' ')"},
      {text + "{% set s = s.replace(' ', '\n') %}", "s.splitlines()"},
      {text, "s[::-1]"},
      {"{% set d = tools[0] %}",
       "d.items(), d.items(), d.items(), d.items(), d.items(), d.items()"},
  };
  for (const auto& [begin, made] : loops) {
    const auto source = [&, begin = begin, made = made](int times) {
      return begin + "{% set ns = namespace(l=[]) %}{% for i in range(" + std::to_string(times) +
             ") %}{% set ns.l = [" + made + "] %}{% endfor %}";
    };
    const ChatTemplateOptions limits = {.max_steps = 1'000'000, .now = {}};
    EXPECT_THAT(error_of(source(99), request, limits), HasSubstr("more than 1000000 steps"))
        << made;
    EXPECT_EQ(error_of(source(0), request, limits), "") << made;
  }
}

// Long texts stay cheap where a template only cuts or splits them; this was quadratic.
TEST(ChatTemplate, CutsAndSplitsLongTexts) {
  std::string words;
  for (int i = 0; i < 400'000; ++i) words += "w\xc3\xa9 ";
  const ordered_json request = {{"messages", {{{"role", "user"}, {"content", words}}}}};
  const auto render = [&](const std::string& expression) {
    const auto text =
        compile("{% set s = messages[0].content %}{{ " + expression + " }}").render(request);
    return text ? *text : text.error().message;
  };
  EXPECT_EQ(render("s.split() | length"), "400000");
  EXPECT_EQ(render("s.split(none, 2) | length"), "3");
  EXPECT_EQ(render("'  a  b '.split()"), "['a', 'b']");
  EXPECT_EQ(render("'  a  b '.split(none, 1)"), "['a', 'b ']");
  EXPECT_EQ(render("' '.split() | length"), "0");
  EXPECT_EQ(render("s[3:5] ~ s[-2] ~ s[1] ~ s[999999999:] ~ s[5:2] ~ s[-3:-1]"),
            "w\xc3\xa9\xc3\xa9\xc3\xa9w\xc3\xa9");
  EXPECT_EQ(render("s[:2] ~ s[1:0] ~ s[::-1][1:3]"), "w\xc3\xa9\xc3\xa9w");
}

TEST(ChatTemplate, EndsWhatRecursesTooDeeply) {
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("recurses too deeply"));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("nested too deeply"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  EXPECT_THAT(error_of(sum + " }}"), HasSubstr("too long"));
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  EXPECT_THAT(error_of(blocks), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of(std::string((1U << 20) + 1, 'x')), HasSubstr("longer than"));
}

TEST(ChatTemplate, SurvivesTruncatedTemplates) {
  const std::string whole =
      "{%- for m in messages if m.role != 'x' -%}{{ m['content'][1:] | trim ~ \"a\\n\" }}"
      "{% set a, b = (1, {'k': [2.5, none]}) %}{% macro f(x, y=1) %}{{ x }}{% endmacro %}"
      "{% call f(1) %}{% endcall %}{# c #}{% raw %}{{{% endraw %}{% endfor %}";
  EXPECT_EQ(error_of(whole), "");
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto compiled = ChatTemplate::from_source(whole.substr(0, size));
    if (compiled) (void)compiled->render(conversation());
    const auto changed =
        ChatTemplate::from_source(whole.substr(0, size) + "}" + whole.substr(size + 1));
    if (changed) (void)changed->render(conversation());
  }
  EXPECT_FALSE(ChatTemplate::from_source("a\xFF"));
}

TEST(ChatTemplate, RendersTheSameFromManyThreads) {
  const auto compiled = compile(
      "{% set ns = namespace(n=0) %}{% for i in range(50) %}{% set ns.n = ns.n + i %}{% endfor %}"
      "{{ ns.n }}{{ messages | map(attribute='content') | join }}");
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        if (compiled.render(conversation()).value_or("") == "1225Hi") ++good;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 200);
}

}  // namespace
}  // namespace refrain::text
