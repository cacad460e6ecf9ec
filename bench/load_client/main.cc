// Requests that run at once against a server, with the time at which each token came: the client
// side of bench/compare.py, in C++ so that it takes little of the processors it shares.
//
//   ripplekv-bench-client HOST:PORT
//
// Reads one JSON object a line and answers with one:
//   {"requests": [{"ids": [...], "context": "...", "new_tokens": 256}, ...]}
//     context may be absent; retention (number) or full (true) may size the cache
//   {"times": [[seconds since the start, one a token], ...], "ids": [[...], ...], "cpu_seconds": n}
//   {"error": "..."}
#include <sys/resource.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "nlohmann/json.hpp"

namespace ripplekv {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

struct Answer {
  std::vector<double> times;
  std::vector<int32_t> ids;
  std::string error;
};

double CpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

v1::GenerateRequest MakeRequest(const json& from) {
  v1::GenerateRequest request;
  for (const json& id : from.at("ids")) request.mutable_token_ids()->add_ids(id.get<int32_t>());
  request.set_context_id(from.value("context", ""));
  request.mutable_stopping()->set_max_tokens(from.at("new_tokens").get<int32_t>());
  request.mutable_stopping()->set_ignore_eos(true);
  if (from.contains("retention")) {
    request.mutable_kv()->mutable_size()->set_retention(from["retention"].get<double>());
  } else if (from.value("full", false)) {
    request.mutable_kv()->mutable_size()->mutable_full();
  }
  return request;
}

json Run(const Client& client, const json& command) {
  std::vector<v1::GenerateRequest> requests;
  for (const json& from : command.at("requests")) requests.push_back(MakeRequest(from));
  std::vector<Answer> answers(requests.size());
  std::vector<std::thread> threads;
  const double cpu = CpuSeconds();
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      Answer& answer = answers[i];
      const auto complete =
          client.Generate(requests[i], CallOptions{}, [&](const v1::GenerateResponse& event) {
            const double at = std::chrono::duration<double>(Clock::now() - start).count();
            for (int32_t id : event.chunk().token_ids()) {
              answer.times.push_back(at);
              answer.ids.push_back(id);
            }
          });
      if (!complete.ok()) answer.error = std::string(complete.status().message());
    });
  }
  for (std::thread& t : threads) t.join();
  json result = {{"times", json::array()}, {"ids", json::array()}};
  result["cpu_seconds"] = CpuSeconds() - cpu;
  for (const Answer& answer : answers) {
    if (!answer.error.empty()) return {{"error", answer.error}};
    result["times"].push_back(answer.times);
    result["ids"].push_back(answer.ids);
  }
  return result;
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " HOST:PORT\n";
    return 2;
  }
  if (absl::Status s = CheckServerAddress(argv[1]); !s.ok()) {
    std::cerr << argv[0] << ": " << s.message() << "\n";
    return 2;
  }
  const Client client(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = Run(client, json::parse(line));
    } catch (const json::exception& e) {
      answer = {{"error", e.what()}};
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) { return ripplekv::Main(argc, argv); }
