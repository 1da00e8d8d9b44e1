#pragma once
// How a program's options are shown: --help, and docs/options.md (--help-page). Pure.

#include <CLI/CLI.hpp>
#include <string>

namespace refrain {

// Like CLI11's, with values and defaults in words.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
};

// All options of the program as Markdown, a table for each group.
std::string options_page(const CLI::App& app);

}  // namespace refrain
