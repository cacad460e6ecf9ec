#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ripplekv {

// Writes --help: names and types to the left, descriptions wrapped to `width` columns to the right.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(int width) : width_(width) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override;
  std::string make_subcommand(const CLI::App* command) const override;

 private:
  std::string Entry(const std::string& name, const std::string& description) const;

  int width_;
};

// Checks without a description: the option's own text says what it takes.
CLI::Validator OneOf(std::vector<std::string> names);
CLI::Validator Quiet(CLI::Validator validator);
CLI::Validator Seconds(bool may_be_zero);
CLI::Validator RequestId();    // gRPC ends the process over other metadata
CLI::Validator NotNegative();  // for unsigned numbers: CLI11 takes -1 for the largest
CLI::Validator Decimal();      // for whole numbers: CLI11 takes 010 for eight and 0x10 for sixteen

}  // namespace ripplekv
