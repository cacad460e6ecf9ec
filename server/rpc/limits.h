#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ripplekv {

// What one call may bring. Those that the engine checks are here only to be told to clients
// (GetModel).
inline constexpr int64_t kMaxMetadataBytes = 16 << 10;  // headers of one call, all together
inline constexpr int kMaxConcurrentStreams = 1024;      // calls of one connection at once
inline constexpr std::chrono::milliseconds kMaxConnectionIdle = std::chrono::minutes(30);
inline constexpr int kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxContextKeyBytes = 64;
inline constexpr int kMaxChatMessages = 1024;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxStopTokenIds = 256;
inline constexpr int kMaxLogitBias = 1024;
inline constexpr int kMaxLogprobs = 20;
// So that no message outgrows what clients receive by default, 4 MiB.
inline constexpr size_t kMaxChunkTokens = 512;
// The answer, token by token, takes many times the text.
inline constexpr size_t kMaxTokenizeBytes = 1 << 20;
inline constexpr int kMaxDetokenizeIds = 1 << 20;
inline constexpr int kMaxPageSize = 1000;
inline constexpr int kDefaultPageSize = 50;

// What a refused caller is told to wait.
inline constexpr std::chrono::milliseconds kRetryDelay{1000};

}  // namespace ripplekv
