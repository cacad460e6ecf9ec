#pragma once

#include <CLI/CLI.hpp>

#include "client/cli/cli.h"

namespace ripplekv {

// Each adds one command with its flags; naming it sets `cli.command`.
void AddGenerate(CLI::App& app, Cli& cli);
void AddChat(CLI::App& app, Cli& cli);
void AddScore(CLI::App& app, Cli& cli);
void AddContext(CLI::App& app, Cli& cli);
void AddTokenize(CLI::App& app, Cli& cli);
void AddDetokenize(CLI::App& app, Cli& cli);
void AddCalibrate(CLI::App& app, Cli& cli);
void AddCalibrations(CLI::App& app, Cli& cli);
void AddProfile(CLI::App& app, Cli& cli);
void AddPlan(CLI::App& app, Cli& cli);
void AddModel(CLI::App& app, Cli& cli);
void AddHealth(CLI::App& app, Cli& cli);

// Adds a command whose flags are a `Flags` and that runs as `int run(const Flags&, Cli&)`.
template <typename Flags>
CLI::App& AddCommand(CLI::App& app, Cli& cli, const std::string& name,
                     const std::string& description, const std::string& examples,
                     void (*add_flags)(CLI::App&, Flags&), int (*run)(const Flags&, Cli&)) {
  CLI::App& command = *app.add_subcommand(name, description);
  command.fallthrough();  // --server, --json and their like may follow the command
  command.footer(
      "Examples:\n" + examples +
      "\n--server, --timeout, --request-id, --json, TLS and tokens: see ripplekv --help.");
  const auto flags = std::make_shared<Flags>();
  add_flags(command, *flags);
  command.callback([&cli, flags, run] {
    // A command below this one has set its own already.
    if (!cli.command) cli.command = [flags, run](Cli& context) { return run(*flags, context); };
  });
  return command;
}

}  // namespace ripplekv
