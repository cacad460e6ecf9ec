#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "calibration/profile.h"

namespace ripplekv {

// A file of the store's directory that is not used, and why.
struct StoreProblem {
  std::string file;          // name inside the directory
  std::string reason;        // one sentence
  std::string set_aside_as;  // its new name; empty where it was left as it is
};

// Profiles in one directory: <id>.json, and <id>.run.json with how the run went. A file is written
// under a temporary name, synced and renamed, so that a crash at any moment leaves the old file or
// the new one. Every read checks the file; a damaged one, or one that is not what its name says, is
// renamed to <name>.corrupt-<n> and reported: never used, never deleted. Files of another format
// version, and those whose names the store does not use, are reported and left alone. Thread-safe;
// several processes may share a directory, of different software versions too.
class ProfileStore {
 public:
  // Makes the directory where it is missing, proves that it can be written, removes what crashed
  // writers left, checks every profile. PERMISSION_DENIED or FAILED_PRECONDITION name the
  // directory, the cause and the way out.
  static absl::StatusOr<std::unique_ptr<ProfileStore>> Open(std::string directory);

  // Writes or replaces profile.id(). INVALID_ARGUMENT for an invalid profile; errors of the file
  // system leave the store as it was (RESOURCE_EXHAUSTED: no space).
  absl::Status Put(const Profile& profile, const std::optional<RunInfo>& run = std::nullopt);

  // INVALID_ARGUMENT: not an id. NOT_FOUND. DATA_LOSS: the file was damaged and is set aside now.
  // FAILED_PRECONDITION: it is of another format version and stays as it is.
  absl::StatusOr<Profile> Get(const std::string& id);

  // The profile measured under exactly this key. NOT_FOUND also where it was damaged or says that
  // it is of another format version (see problems()): the way out is the same, to measure again.
  absl::StatusOr<Profile> FindMatching(const ProfileKey& key);

  // NOT_FOUND where none was kept, or it was damaged or of another format version.
  absl::StatusOr<RunInfo> GetRunInfo(const std::string& id);

  // All sound profiles, by id; damaged ones are set aside and left out, those of another format
  // version left out.
  absl::StatusOr<std::vector<Profile>> List();

  // NOT_FOUND, INVALID_ARGUMENT as of Get. Removes the run's file too.
  absl::Status Delete(const std::string& id);

  // What Open and reads came across so far, in that order.
  std::vector<StoreProblem> problems() const;

  const std::string& directory() const { return directory_; }

 private:
  explicit ProfileStore(std::string directory) : directory_(std::move(directory)) {}

  // The rest is called with mutex_ held, but for Scan, which takes it.
  absl::Status Scan();
  absl::StatusOr<std::vector<std::string>> FileNames() const;  // sorted
  std::string Path(const std::string& name) const;
  absl::StatusOr<std::string> ReadFile(const std::string& name);
  absl::StatusOr<Profile> ReadProfile(const std::string& id);
  absl::StatusOr<RunInfo> ReadRun(const std::string& id);
  // Renames a damaged file and reports it; the DATA_LOSS to return.
  absl::Status SetAside(const std::string& name, absl::string_view reason);
  // Does so with a file that a parser refused, unless it is of another format version: then only
  // reports it; the FAILED_PRECONDITION to return.
  absl::Status Refuse(const std::string& name, const absl::Status& refusal);
  void Report(StoreProblem problem);

  const std::string directory_;
  mutable std::mutex mutex_;  // held over every operation
  std::vector<StoreProblem> problems_;
};

}  // namespace ripplekv
