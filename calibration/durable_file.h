#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ripplekv {

// Files that a crash leaves either old or new, never half written. Errors carry the path and the
// system's reason, with the code that absl::ErrnoToStatus gives.

// Writes directory/name through a temporary file in the same directory: written, synced, renamed
// over the target, the directory synced. The temporary file is locked while its writer lives.
absl::Status WriteFileDurably(const std::string& directory, const std::string& name,
                              absl::string_view bytes);

// Whether a file can be made and synced in the directory: makes one and removes it.
absl::Status CheckWritable(const std::string& directory);

// A name that WriteFileDurably gives its temporary files.
bool IsTemporaryName(absl::string_view name);

// Removes a temporary file unless a living writer holds it.
void RemoveIfAbandoned(const std::string& path);

// Makes renames and removals in the directory durable.
absl::Status SyncDirectory(const std::string& directory);

// The bytes of a regular file. NOT_FOUND; DATA_LOSS when it is a link, not a regular file or longer
// than max_bytes.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t max_bytes);

}  // namespace ripplekv
