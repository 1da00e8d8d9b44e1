// Command-line and configuration-file parsing: errors as sentences, unknown names with near ones.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "runtime/base/json.h"
#include "runtime/config/absent_options.h"
#include "runtime/config/compilation_config.h"
#include "runtime/config/help.h"
#include "runtime/config/options.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_fnames()) names.push_back("--" + name);
  }
  return names;
}

// The value of a JSON scalar as a command-line word.
Result<std::string> word_of(const Json& value, const std::string& path, const std::string& key) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  return fail_field(key, "{}: {} must be a string, a number, true, false or a list of these", path,
                    key);
}

// The command line wins, also over a list, which would take more members otherwise. A file's words
// are "--name=true" or "--name", "value".
void drop_given(CLI::App& app, const std::vector<std::string>& given,
                std::vector<std::string>& from_files) {
  // An option has one name for all of its aliases.
  const auto name_of = [&app](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    const CLI::Option* option = app.get_option_no_throw(name);
    return option == nullptr ? name : option->get_name();
  };
  std::set<std::string> names;
  for (const std::string& word : given)
    if (word.starts_with("--")) names.insert(name_of(word));
  std::vector<std::string> kept;
  for (size_t i = 0; i < from_files.size();) {
    const size_t words = from_files[i].find('=') == std::string::npos ? 2 : 1;
    if (!names.contains(name_of(from_files[i])))
      kept.insert(kept.end(), &from_files[i], &from_files[i] + words);
    i += words;
  }
  from_files = std::move(kept);
}

Result<std::vector<std::string>> expand_config_files(CLI::App& app,
                                                     std::vector<std::string> arguments) {
  std::vector<std::string> from_files, rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string path;
    if (arguments[i] == "--config") {
      if (i + 1 == arguments.size()) return fail_field("--config", "--config needs a file");
      path = arguments[++i];
    } else if (arguments[i].rfind("--config=", 0) == 0) {
      path = arguments[i].substr(9);
    } else {
      rest.push_back(arguments[i]);
      continue;
    }
    REFRAIN_ASSIGN_OR_RETURN(const auto words, config_file_arguments(path));
    from_files.insert(from_files.end(), words.begin(), words.end());
  }
  drop_given(app, rest, from_files);
  from_files.insert(from_files.end(), rest.begin(), rest.end());
  return from_files;
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 6) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

Result<std::vector<std::string>> config_file_arguments(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(ErrorCode::kNotFound, "configuration file {} cannot be read", path);
  std::stringstream text;
  text << file.rdbuf();
  return config_arguments(text.str(), path);
}

Result<std::vector<std::string>> config_arguments(const std::string& text,
                                                  const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false, true);
  if (!json.is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: a configuration file is one JSON object of options", path);
  }
  std::vector<std::string> words;
  for (const auto& [key, value] : json.items()) {
    if (key == "$schema") continue;
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "config")
      return fail_field(key, "{}: a configuration file cannot name another", path);
    if (value.is_boolean()) {
      words.push_back("--" + name + (value.get<bool>() ? "=true" : "=false"));
    } else if (value.is_object()) {
      words.push_back("--" + name);
      words.push_back(value.dump());
    } else if (value.is_array()) {
      std::string joined;
      for (const Json& item : value) {
        REFRAIN_ASSIGN_OR_RETURN(const std::string word, word_of(item, path, key));
        if (name == "api-key") {  // a comma is part of a key
          words.insert(words.end(), {"--api-key", word});
          continue;
        }
        joined += (joined.empty() ? "" : ",") + word;
      }
      if (name == "api-key") continue;
      words.push_back("--" + name);
      words.push_back(joined);
    } else {
      REFRAIN_ASSIGN_OR_RETURN(const std::string word, word_of(value, path, key));
      words.push_back("--" + name);
      words.push_back(word);
    }
  }
  return words;
}

Result<ParseOutcome> parse_command_line(CLI::App& app, std::vector<std::string> arguments) {
  REFRAIN_ASSIGN_OR_RETURN(arguments, expand_config_files(app, std::move(arguments)));
  // vLLM's short name, which has two letters.
  std::ranges::replace(arguments, std::string("-dp"), std::string("--data-parallel-size"));
  arguments = join_compilation_config(std::move(arguments));
  app.formatter(std::make_shared<HelpFormatter>());
  if (arguments == std::vector<std::string>{"--help-page"}) {
    std::fputs(options_page(app).c_str(), stdout);
    return ParseOutcome{true};
  }
  // Options given twice (file, then command line): the last one wins.
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() == 1)
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  try {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return ParseOutcome{true};
  } catch (const CLI::CallForAllHelp&) {
    std::fputs(app.help("", CLI::AppFormatMode::All).c_str(), stdout);
    return ParseOutcome{true};
  } catch (const CLI::CallForVersion& version) {
    std::fputs((std::string(version.what()) + "\n").c_str(), stdout);
    return ParseOutcome{true};
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining();
    const std::string name =
        extras.empty() ? "?" : extras.front().substr(0, extras.front().find('='));
    if (const char* why = absent_option(name)) {
      return fail_field(name, "unknown option {}: {}", name, why);
    }
    const std::string near = nearest_name(name, option_names(app));
    return fail_field(name, "unknown option {}{}; --help lists them", name,
                      near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
  } catch (const CLI::ParseError& error) {
    return fail(ErrorCode::kInvalidArgument, "{}", error.what());
  }
  return ParseOutcome{};
}

}  // namespace refrain
