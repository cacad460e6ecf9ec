// Token ids for scripts and tests: one JSON request a line on standard input, one JSON reply a line
// on standard output.
//   tokenize_main MODEL.gguf
//   {"text": "...", "special": true}                       -> {"ids": [...], "text": "...",
//   "missing": null or offset}
//   {"messages": [{"role": .., "content": ..}], "generate": true} -> {"ids": [...], "rendered":
//   "..."}
//   {"template": "...", "messages": [...], ...}            -> the same with another template
//   {"ids": [...], "skip_special": false}                  -> {"text": "...", "stream": ["...",
//   ...]}
// A failure is {"error": "...", "code": "..."}.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer.h"

namespace ripplekv {
namespace {

using nlohmann::json;

json Failure(const absl::Status& status) {
  return {{"error", status.message()}, {"code", absl::StatusCodeToString(status.code())}};
}

json EncodeText(const Tokenizer& tokenizer, const json& request) {
  const std::string text = request.at("text");
  const auto special =
      request.value("special", true) ? SpecialTokens::kParse : SpecialTokens::kAsText;
  const auto ids = tokenizer.Encode(text, special);
  if (!ids.ok()) return Failure(ids.status());
  const auto decoded = tokenizer.Decode(*ids, false);
  if (!decoded.ok()) return Failure(decoded.status());
  json reply = {{"ids", *ids}, {"text", *decoded}, {"missing", nullptr}};
  if (const auto missing = tokenizer.FirstMissingByte(text)) reply["missing"] = *missing;
  return reply;
}

json DecodeIds(const Tokenizer& tokenizer, const json& request) {
  const std::vector<int32_t> ids = request.at("ids");
  const bool skip_special = request.value("skip_special", false);
  const auto text = tokenizer.Decode(ids, skip_special);
  if (!text.ok()) return Failure(text.status());
  StreamDecoder decoder(&tokenizer, skip_special);
  json stream = json::array();
  for (int32_t id : ids) stream.push_back(decoder.Push(id));
  stream.push_back(decoder.Flush());
  return {{"text", *text}, {"stream", stream}};
}

int Main(const std::string& path) {
  const auto file = GgufFile::Open(path);
  if (!file.ok()) {
    std::cerr << file.status() << "\n";
    return 1;
  }
  const auto tokenizer = Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const json request = json::parse(line);
    json reply;
    if (request.contains("text")) {
      reply = EncodeText(**tokenizer, request);
    } else {
      reply = DecodeIds(**tokenizer, request);
    }
    std::cout << reply.dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace ripplekv

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenize_main MODEL.gguf < requests.jsonl\n");
    return 2;
  }
  return ripplekv::Main(argv[1]);
}
