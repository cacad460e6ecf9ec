// Token ids for tests: a JSON request a line on standard input, a JSON reply a line on standard output.
//   tokenize_main MODEL.gguf
//   {"text": "...", "special": true}  -> {"ids": [...], "text": "...", "missing": null or an offset}
//   {"messages": [{"role": "...", "content": "..."}], "generate": true}
//                                     -> {"ids": [...], "rendered": "...", "user": ["...", ...]}
//   {"template": "...", "bos_token": "...", "eos_token": "...", "messages": ...}
//                                     -> the same by another template
//   {"ids": [...], "skip_special": false}  -> {"text": "...", "stream": ["...", ...]}
// A failure is {"error": "...", "code": "..."}.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/chat_template.h"
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

json RenderMessages(const GgufFile& file, const Tokenizer& tokenizer, const json& request) {
  absl::StatusOr<ChatTemplate> chat = absl::UnknownError("unset");
  if (request.contains("template")) {
    ChatTemplate::TokenTexts tokens;
    if (request.contains("bos_token")) tokens.bos = request["bos_token"];
    if (request.contains("eos_token")) tokens.eos = request["eos_token"];
    chat = ChatTemplate::Parse(std::string(request["template"]), tokens);
  } else {
    chat = ChatTemplate::FromGguf(file, tokenizer);
  }
  if (!chat.ok()) return Failure(chat.status());
  std::vector<ChatMessage> messages;
  for (const json& message : request.at("messages")) {
    messages.push_back({message.at("role"), message.at("content")});
  }
  const auto segments = chat->Render(messages, request.value("generate", false));
  if (!segments.ok()) return Failure(segments.status());
  const auto ids = tokenizer.EncodeSegments(*segments);
  if (!ids.ok()) return Failure(ids.status());
  json reply = {{"ids", *ids}, {"rendered", ""}, {"user", json::array()}};
  for (const TextSegment& segment : *segments) {
    reply["rendered"] = std::string(reply["rendered"]) + segment.text;
    if (segment.from_user) reply["user"].push_back(segment.text);
  }
  return reply;
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
    } else if (request.contains("messages")) {
      reply = RenderMessages(*file, **tokenizer, request);
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
