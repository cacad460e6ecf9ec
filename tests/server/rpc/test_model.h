#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/loaded_model.h"

namespace ripplekv {

// A model without weights whose vocabulary is every printable ASCII character, the space and three
// control tokens: ids 0 to 93 are '!' to '~', 94 the space, 95 <|start|>, 96 <|end|>, 97 <|bos|>.
// Its template writes the opening of an answer as <|start|> alone.
inline ModelInfo TinyModel(bool add_bos = false) {
  TokenizerData data;
  for (char c = '!'; c <= '~'; ++c) data.tokens.push_back(std::string(1, c));
  data.tokens.push_back("\xC4\xA0");  // how byte-level vocabularies write a space
  data.types.assign(data.tokens.size(), TokenType::kNormal);
  for (const char* token : {"<|start|>", "<|end|>", "<|bos|>"}) {
    data.tokens.push_back(token);
    data.types.push_back(TokenType::kControl);
  }
  data.pre = "gpt-2";
  data.eos = 96;
  data.bos = 97;
  data.add_bos = add_bos;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  ModelInfo model{
      .config = {},
      .fingerprint = std::string(64, 'f'),
      .weight_types = {},
      .tokenizer = *std::move(tokenizer),
      .chat_template = ChatTemplate::Parse(
          "{% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}"
          "{% if add_generation_prompt %}<|start|>{% endif %}",
          {}),
      .eos_token_ids = {96},
      .longest_token_bytes = 9};
  EXPECT_TRUE(model.chat_template.ok()) << model.chat_template.status();
  model.config.layers = 4;
  model.config.kv_heads = 2;
  model.config.head_dim = 8;
  model.config.vocab = 98;
  model.config.context_length = 100;
  return model;
}

}  // namespace ripplekv
