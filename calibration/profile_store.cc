#include "calibration/profile_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "calibration/canonical_digest.h"
#include "calibration/durable_file.h"

namespace ripplekv {
namespace {

constexpr char kProfileSuffix[] = ".json";
constexpr char kRunSuffix[] = ".run.json";
constexpr char kCorruptMark[] = ".corrupt-";
constexpr int64_t kMaxFileBytes = int64_t{16} << 20;

std::string ProfileFile(const std::string& id) { return absl::StrCat(id, kProfileSuffix); }
std::string RunFile(const std::string& id) { return absl::StrCat(id, kRunSuffix); }

bool IsIdWithSuffix(const std::string& name, const std::string& suffix) {
  return name.size() == 64 + suffix.size() && name.substr(64) == suffix &&
         IsSha256Hex(name.substr(0, 64));
}

absl::Status CheckId(const std::string& id) {
  if (IsSha256Hex(id)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "profile id is malformed: must be 64 lower-case hexadecimal digits");
}

absl::Status NoProfile(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("no profile ", id));
}

// Open's errors are about the operator's choice of directory, and say how to mend it.
absl::Status Unusable(const std::string& directory, const absl::Status& cause) {
  const auto code = absl::IsPermissionDenied(cause) ? absl::StatusCode::kPermissionDenied
                                                    : absl::StatusCode::kFailedPrecondition;
  return absl::Status(code, absl::StrCat("profile directory \"", directory, "\" cannot be used: ",
                                         cause.message(), "; make it writable for user ", geteuid(),
                                         " or name another with --profile-dir"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProfileStore>> ProfileStore::Open(std::string directory) {
  if (directory.empty()) {
    return absl::FailedPreconditionError(
        "no profile directory is set: name one with --profile-dir");
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Unusable(directory, absl::ErrnoToStatus(error.value(), "cannot create it"));
  }
  auto store = std::unique_ptr<ProfileStore>(new ProfileStore(std::move(directory)));
  absl::Status status = CheckWritable(store->directory_);
  if (status.ok()) status = store->Scan();
  if (!status.ok()) return Unusable(store->directory_, status);
  return store;
}

absl::StatusOr<std::vector<std::string>> ProfileStore::FileNames() const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(directory_, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list ", directory_));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status ProfileStore::Scan() {
  const std::lock_guard lock(mutex_);
  absl::StatusOr<std::vector<std::string>> names = FileNames();
  if (!names.ok()) return names.status();
  std::error_code ignored;
  for (const std::string& name : *names) {
    if (IsTemporaryName(name)) {
      RemoveIfAbandoned(Path(name));
    } else if (IsIdWithSuffix(name, kProfileSuffix)) {
      ReadProfile(name.substr(0, 64)).IgnoreError();
    } else if (IsIdWithSuffix(name, kRunSuffix)) {
      ReadRun(name.substr(0, 64)).IgnoreError();
    } else if (name[0] != '.' && !absl::StrContains(name, kCorruptMark) &&
               !std::filesystem::is_directory(Path(name), ignored)) {
      Report({name, "not a name this store uses", ""});
    }
  }
  return absl::OkStatus();
}

absl::Status ProfileStore::Put(const Profile& profile, const std::optional<RunInfo>& run) {
  absl::StatusOr<std::string> json = SerializeProfile(profile);
  if (!json.ok()) return json.status();
  const std::string id = profile.id();
  const std::lock_guard lock(mutex_);
  // The profile comes last: once it is there, everything is.
  if (run.has_value()) {
    absl::Status status = WriteFileDurably(directory_, RunFile(id), SerializeRunInfo(*run));
    if (!status.ok()) return status;
  } else {
    unlink(Path(RunFile(id)).c_str());  // it told of the profile that is being replaced
  }
  return WriteFileDurably(directory_, ProfileFile(id), *json);
}

absl::StatusOr<Profile> ProfileStore::Get(const std::string& id) {
  if (absl::Status status = CheckId(id); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  return ReadProfile(std::string(id));
}

absl::StatusOr<Profile> ProfileStore::FindMatching(const ProfileKey& key) {
  const std::string id = ProfileId(key);
  absl::StatusOr<Profile> profile = Get(id);
  if (absl::IsDataLoss(profile.status()) || absl::IsFailedPrecondition(profile.status())) {
    return NoProfile(id);
  }
  return profile;
}

absl::StatusOr<RunInfo> ProfileStore::GetRunInfo(const std::string& id) {
  if (absl::Status status = CheckId(id); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  return ReadRun(std::string(id));
}

absl::StatusOr<std::vector<Profile>> ProfileStore::List() {
  const std::lock_guard lock(mutex_);
  absl::StatusOr<std::vector<std::string>> names = FileNames();
  if (!names.ok()) return names.status();
  std::vector<Profile> profiles;
  for (const std::string& name : *names) {
    if (!IsIdWithSuffix(name, kProfileSuffix)) continue;
    absl::StatusOr<Profile> profile = ReadProfile(name.substr(0, 64));
    if (profile.ok()) profiles.push_back(*std::move(profile));
  }
  return profiles;
}

absl::Status ProfileStore::Delete(const std::string& id) {
  if (absl::Status status = CheckId(id); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  const std::string path = Path(ProfileFile(id));
  if (unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return NoProfile(id);
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
  }
  unlink(Path(RunFile(id)).c_str());
  return SyncDirectory(directory_);
}

std::vector<StoreProblem> ProfileStore::problems() const {
  const std::lock_guard lock(mutex_);
  return problems_;
}

std::string ProfileStore::Path(const std::string& name) const {
  return absl::StrCat(directory_, "/", name);
}

absl::StatusOr<std::string> ProfileStore::ReadFile(const std::string& name) {
  absl::StatusOr<std::string> bytes = ReadRegularFile(Path(name), kMaxFileBytes);
  if (bytes.ok() || absl::IsNotFound(bytes.status())) return bytes;
  if (absl::IsDataLoss(bytes.status())) return SetAside(name, bytes.status().message());
  // The file may be sound: only reading it failed.
  Report({name, std::string(bytes.status().message()), ""});
  return bytes;
}

absl::StatusOr<Profile> ProfileStore::ReadProfile(const std::string& id) {
  const std::string name = ProfileFile(id);
  absl::StatusOr<std::string> bytes = ReadFile(name);
  if (absl::IsNotFound(bytes.status())) return NoProfile(id);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<Profile> profile = ParseProfile(*bytes);
  if (!profile.ok()) return Refuse(name, profile.status());
  if (profile->id() != id) {
    return SetAside(name, absl::StrCat("holds profile ", profile->id(), ", not its name's"));
  }
  return profile;
}

absl::StatusOr<RunInfo> ProfileStore::ReadRun(const std::string& id) {
  const std::string name = RunFile(id);
  absl::StatusOr<std::string> bytes = ReadFile(name);
  absl::StatusOr<RunInfo> run = bytes.ok() ? ParseRunInfo(*bytes) : bytes.status();
  if (run.ok()) return run;
  if (bytes.ok()) Refuse(name, run.status()).IgnoreError();
  return absl::NotFoundError(absl::StrCat("no record of how profile ", id, " was measured"));
}

absl::Status ProfileStore::SetAside(const std::string& name, absl::string_view reason) {
  std::string target;
  struct stat info{};
  int n = 1;
  do {
    target = absl::StrCat(name, kCorruptMark, n++);
  } while (lstat(Path(target).c_str(), &info) == 0);
  if (rename(Path(name).c_str(), Path(target).c_str()) != 0) target.clear();
  Report({name, std::string(reason), target});
  return absl::DataLossError(
      absl::StrCat("profile file ", Path(name), " is damaged (", reason, ") and was ",
                   target.empty() ? "ignored; it could not be renamed" : "set aside as ", target));
}

absl::Status ProfileStore::Refuse(const std::string& name, const absl::Status& refusal) {
  if (!absl::IsFailedPrecondition(refusal)) return SetAside(name, refusal.message());
  Report({name, std::string(refusal.message()), ""});
  return absl::FailedPreconditionError(
      absl::StrCat("profile file ", Path(name), " is of ", refusal.message(),
                   "; it is left to the software that wrote it: measure the model again"));
}

void ProfileStore::Report(StoreProblem problem) {
  // A file that stays where it is is met again at each read.
  const bool known = std::any_of(problems_.begin(), problems_.end(), [&](const auto& other) {
    return other.file == problem.file && other.reason == problem.reason &&
           other.set_aside_as == problem.set_aside_as;
  });
  if (!known) problems_.push_back(std::move(problem));
}

}  // namespace ripplekv
