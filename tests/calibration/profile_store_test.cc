#include "calibration/profile_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/calibration/example_profile.h"
#include "tests/calibration/temporary_directory.h"

namespace ripplekv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace fs = std::filesystem;

class ProfileStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<ProfileStore> Open() {
    auto store = ProfileStore::Open(directory_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  std::string Read(const std::string& name) const {
    std::ifstream stream(Path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TemporaryDirectory directory_;
  const Profile profile_ = ExampleProfile();
  const std::string id_ = profile_.id();
  const std::string bytes_ = *SerializeProfile(profile_);
};

TEST_F(ProfileStoreTest, KeepsWhatIsPut) {
  RunInfo run;
  run.started_at = "2026-01-02T03:04:05Z";
  run.duration_seconds = 1.5;
  run.threads = 2;
  {
    const auto store = Open();
    EXPECT_EQ(store->Get(id_).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(store->FindMatching(profile_.key).status().code(), absl::StatusCode::kNotFound);
    ASSERT_TRUE(store->Put(profile_, run).ok());
    EXPECT_EQ(*store->Get(id_), profile_);
  }
  EXPECT_EQ(Read(id_ + ".json"), bytes_);
  const auto store = Open();  // as after a restart
  EXPECT_EQ(*store->Get(id_), profile_);
  EXPECT_EQ(*store->FindMatching(profile_.key), profile_);
  EXPECT_EQ(*store->GetRunInfo(id_), run);
  EXPECT_THAT(store->problems(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre(id_ + ".json", id_ + ".run.json"));

  ASSERT_TRUE(store->Put(profile_).ok());
  EXPECT_EQ(store->GetRunInfo(id_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProfileStoreTest, ListsByIdAndDeletes) {
  const auto store = Open();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ASSERT_TRUE(store->Put(ExampleProfile(seed), RunInfo{}).ok());
  }
  const std::vector<Profile> profiles = *store->List();
  ASSERT_THAT(profiles, SizeIs(8));
  for (size_t i = 1; i < profiles.size(); ++i) EXPECT_LT(profiles[i - 1].id(), profiles[i].id());
  ASSERT_TRUE(store->Delete(id_).ok());
  EXPECT_EQ(store->Delete(id_).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Get(id_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->GetRunInfo(id_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*store->List(), SizeIs(7));
}

TEST_F(ProfileStoreTest, InvalidProfilesAreRefused) {
  const auto store = Open();
  Profile invalid = profile_;
  invalid.sensitivity.pop_back();
  EXPECT_EQ(store->Put(invalid).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(ProfileStoreTest, IdsAreNeverPaths) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(profile_).ok());
  for (const std::string& id :
       {std::string(), std::string("."),
        "../" + fs::path(directory_.path()).filename().string() + "/" + id_, Path(id_),
        id_ + ".json", id_ + "0", id_.substr(1), std::string(64, 'A'), "./" + id_.substr(2),
        std::string(64, '\0')}) {
    EXPECT_EQ(store->Get(id).status().code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_EQ(store->GetRunInfo(id).status().code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_EQ(store->Delete(id).code(), absl::StatusCode::kInvalidArgument) << id;
  }
  EXPECT_THAT(*store->List(), SizeIs(1));
}

TEST_F(ProfileStoreTest, DamagedFilesAreSetAsideAndNamed) {
  const auto store = Open();
  // 500 mutations: a byte changed, or the tail cut off, or both.
  std::mt19937 random(10);
  for (int i = 1; i <= 500; ++i) {
    std::string damaged = bytes_;
    if (i % 2 == 0) damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    if (i % 3 == 0 || i % 2 == 1) damaged.resize(random() % damaged.size());
    Write(id_ + ".json", damaged);
    const absl::Status status = store->Get(id_).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss);
    const std::string aside = id_ + ".json.corrupt-" + std::to_string(i);
    ASSERT_THAT(std::string(status.message()), HasSubstr("set aside as " + aside));
    ASSERT_EQ(Read(aside), damaged);
    ASSERT_EQ(store->Get(id_).status().code(), absl::StatusCode::kNotFound);
  }
  const std::vector<StoreProblem> problems = store->problems();
  ASSERT_THAT(problems, SizeIs(500));
  EXPECT_EQ(problems[499].file, id_ + ".json");
  EXPECT_EQ(problems[499].set_aside_as, id_ + ".json.corrupt-500");
  EXPECT_FALSE(problems[499].reason.empty());
  // The place is free for a new measurement.
  ASSERT_TRUE(store->Put(profile_).ok());
  EXPECT_EQ(*store->Get(id_), profile_);
}

TEST_F(ProfileStoreTest, OpenFindsDamageAndKeepsTheRest) {
  const Profile other = ExampleProfile(1);
  {
    const auto store = Open();
    ASSERT_TRUE(store->Put(profile_, RunInfo{}).ok());
    ASSERT_TRUE(store->Put(other, RunInfo{}).ok());
  }
  Write(id_ + ".json", bytes_.substr(0, 700));
  Write(other.id() + ".run.json", "{");
  const auto store = Open();
  EXPECT_THAT(store->problems(), SizeIs(2));
  EXPECT_THAT(*store->List(), ElementsAre(other));
  EXPECT_EQ(store->FindMatching(profile_.key).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->GetRunInfo(other.id()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(fs::exists(Path(id_ + ".json.corrupt-1")));
  EXPECT_TRUE(fs::exists(Path(other.id() + ".run.json.corrupt-1")));
  // Set aside means over: the next start has nothing to say.
  EXPECT_THAT(Open()->problems(), IsEmpty());
}

// As of an older and of a newer server that share the directory.
TEST_F(ProfileStoreTest, OtherFormatVersionsAreReportedOnceAndStay) {
  const auto of_version = [](std::string bytes, int version) {
    const std::string ours = "\": " + std::to_string(kProfileFormatVersion);
    const size_t at = bytes.find(ours);
    EXPECT_NE(at, std::string::npos);
    return bytes.replace(at, ours.size(), "\": " + std::to_string(version));
  };
  const std::string newer_id(64, 'e');
  const std::string older = of_version(bytes_, 1);
  const std::string newer = of_version(bytes_, kProfileFormatVersion + 1);
  const std::string run = of_version(SerializeRunInfo(RunInfo{}), kProfileFormatVersion + 1);
  Write(id_ + ".json", older);
  Write(newer_id + ".json", newer);
  Write(newer_id + ".run.json", run);
  const auto store = Open();
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = store->Get(newer_id).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(newer_id + ".json is of profile format version " +
                          std::to_string(kProfileFormatVersion + 1) + ": this software reads"));
    EXPECT_EQ(store->GetRunInfo(newer_id).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(store->FindMatching(profile_.key).status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(*store->List(), IsEmpty());
  }
  ASSERT_THAT(store->problems(), SizeIs(3));
  for (const StoreProblem& problem : store->problems()) {
    EXPECT_THAT(problem.reason, HasSubstr("format version"));
    EXPECT_EQ(problem.set_aside_as, "");
  }
  EXPECT_THAT(Names(), testing::UnorderedElementsAre(id_ + ".json", newer_id + ".json",
                                                     newer_id + ".run.json"));
  EXPECT_EQ(Read(id_ + ".json"), older);
  EXPECT_EQ(Read(newer_id + ".json"), newer);
  EXPECT_EQ(Read(newer_id + ".run.json"), run);
  ASSERT_TRUE(store->Put(profile_).ok());
  EXPECT_EQ(*store->Get(id_), profile_);
}

TEST_F(ProfileStoreTest, FindMatchingTreatsDamageAsAbsence) {
  const auto store = Open();
  Write(id_ + ".json", "garbage");
  EXPECT_EQ(store->FindMatching(profile_.key).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(store->problems(), SizeIs(1));
}

TEST_F(ProfileStoreTest, ForeignFilesAreNeverTrusted) {
  const std::string other_id = ExampleProfile(1).id();
  const std::string link_id = ExampleProfile(2).id();
  const std::string fifo_id = ExampleProfile(3).id();
  const std::string folder_id = ExampleProfile(4).id();
  const std::string large_id = ExampleProfile(5).id();
  const std::string text = "somebody else's";
  Write("notes.txt", text);
  Write("other.json", bytes_);
  Write(".hidden", text);
  fs::create_directory(Path("lost+found"));
  Write(other_id + ".json", bytes_);  // a sound profile under another's name
  fs::create_symlink("other.json", Path(link_id + ".json"));
  ASSERT_EQ(mkfifo(Path(fifo_id + ".json").c_str(), 0600), 0);
  fs::create_directory(Path(folder_id + ".json"));
  Write(large_id + ".json", "{");
  fs::resize_file(Path(large_id + ".json"), (16 << 20) + 1);

  const auto store = Open();
  EXPECT_THAT(*store->List(), IsEmpty());
  for (const std::string& id : {other_id, link_id, fifo_id, folder_id, large_id}) {
    EXPECT_EQ(store->Get(id).status().code(), absl::StatusCode::kNotFound);
    EXPECT_NE(fs::symlink_status(Path(id + ".json.corrupt-1")).type(), fs::file_type::not_found);
  }
  EXPECT_EQ(Read("notes.txt"), text);
  EXPECT_EQ(Read("other.json"), bytes_);
  EXPECT_EQ(Read(".hidden"), text);
  EXPECT_THAT(store->problems(), SizeIs(7));
  for (const StoreProblem& problem : store->problems()) {
    const bool left = problem.file == "notes.txt" || problem.file == "other.json";
    EXPECT_EQ(problem.set_aside_as, left ? "" : problem.file + ".corrupt-1");
  }
}

TEST_F(ProfileStoreTest, LeftOversOfCrashedWritersAreRemoved) {
  Write(".ripplekv-tmp-dead01", bytes_.substr(0, 500));
  Write(".ripplekv-tmp-live01", bytes_.substr(0, 500));
  // A living writer holds its file's lock.
  const int fd = open(Path(".ripplekv-tmp-live01").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  const auto store = Open();
  EXPECT_THAT(Names(), ElementsAre(".ripplekv-tmp-live01"));
  EXPECT_THAT(*store->List(), IsEmpty());
  EXPECT_THAT(store->problems(), IsEmpty());
  close(fd);
  Open();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(ProfileStoreTest, KilledWritersLeaveOldOrNew) {
  // A child writes two profiles over and over and is killed at a random moment.
  const Profile other = ExampleProfile(1);
  std::mt19937 random(11);
  bool seen = false,
       seen_other = false;  // until both, nothing is proven; on a slow disk that takes
  for (int i = 0; i < 40 || (!(seen && seen_other) && i < 1000); ++i) {  // more than 40 kills
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = ProfileStore::Open(directory_.path());
      while (store.ok()) {
        if (!(*store)->Put(i % 2 == 0 ? profile_ : other, RunInfo{}).ok()) break;
        if (!(*store)->Put(i % 2 == 0 ? other : profile_, RunInfo{}).ok()) break;
      }
      _exit(1);
    }
    usleep(1000 + random() % 60000);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";
    const auto store = Open();
    ASSERT_THAT(store->problems(), IsEmpty());
    for (const std::string& name : Names()) ASSERT_NE(name[0], '.') << name;
    const auto found = store->Get(id_), found_other = store->Get(other.id());
    // Once there, a profile stays: replacing it never leaves a gap.
    ASSERT_TRUE(found.ok() ? *found == profile_ : !seen) << found.status();
    ASSERT_TRUE(found_other.ok() ? *found_other == other : !seen_other) << found_other.status();
    seen = found.ok();
    seen_other = found_other.ok();
  }
  EXPECT_TRUE(seen && seen_other);
}

TEST_F(ProfileStoreTest, UnusableDirectoriesSayWhyAndWhatToDo) {
  Write("file", "");
  struct Case {
    std::string directory;
    absl::StatusCode code;
    const char* cause;
  };
  for (const Case& c : std::vector<Case>{
           {"", absl::StatusCode::kFailedPrecondition, "--profile-dir"},
           {Path("file"), absl::StatusCode::kFailedPrecondition, "Not a directory"},
           {Path("file/below"), absl::StatusCode::kFailedPrecondition, "Not a directory"},
           {"/proc/ripplekv", absl::StatusCode::kFailedPrecondition, "No such file or directory"},
       }) {
    const absl::Status status = ProfileStore::Open(c.directory).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.directory));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.cause));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--profile-dir"));
  }
}

TEST_F(ProfileStoreTest, DirectoriesWithoutPermissionSaySo) {
  ASSERT_TRUE(Open()->Put(profile_).ok());
  fs::permissions(directory_.path(), fs::perms(0555));
  // In a child, since root must become somebody else to be refused.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (geteuid() == 0 && seteuid(65534) != 0) _exit(2);
    const absl::Status status = ProfileStore::Open(directory_.path()).status();
    const absl::Status below = ProfileStore::Open(Path("below")).status();
    const std::string message(status.message());
    const bool right = absl::IsPermissionDenied(status) && absl::IsPermissionDenied(below) &&
                       message.find(directory_.path()) != std::string::npos &&
                       message.find("make it writable for user") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  fs::permissions(directory_.path(), fs::perms(0755));
  EXPECT_EQ(status, 0);
}

TEST_F(ProfileStoreTest, MissingDirectoriesAreMade) {
  const std::string deep = Path("a/b/c");
  ASSERT_TRUE((*ProfileStore::Open(deep))->Put(profile_).ok());
  EXPECT_TRUE(fs::exists(deep + "/" + id_ + ".json"));
}

TEST_F(ProfileStoreTest, FailedWritesLeaveTheStoreAsItWas) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(profile_).ok());
  Profile changed = profile_;
  changed.sensitivity[0] = 1;
  fs::rename(directory_.path(), directory_.path() + "-away");
  EXPECT_FALSE(store->Put(changed).ok());
  fs::rename(directory_.path() + "-away", directory_.path());
  EXPECT_EQ(*store->Get(id_), profile_);
  EXPECT_THAT(Names(), ElementsAre(id_ + ".json"));
}

TEST_F(ProfileStoreTest, ThreadsAndStoresShareADirectory) {
  const auto store = Open();
  const auto second = Open();  // as another process would
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      ProfileStore& mine = t % 2 == 0 ? *store : *second;
      for (int i = 0; i < 25; ++i) {
        const Profile profile = ExampleProfile(static_cast<uint64_t>(t + i) % 4);
        if (!mine.Put(profile, RunInfo{}).ok()) ++wrong;
        const auto found = mine.Get(profile.id());
        if (found.ok() ? *found != profile : !absl::IsNotFound(found.status())) ++wrong;
        if (!mine.List().ok()) ++wrong;
        if (i % 7 == 0) {
          const absl::Status deleted = mine.Delete(profile.id());
          if (!deleted.ok() && !absl::IsNotFound(deleted)) ++wrong;
        }
        if (i % 9 == 0 && !ProfileStore::Open(directory_.path()).ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_THAT(store->problems(), IsEmpty());
  EXPECT_THAT(second->problems(), IsEmpty());
  for (const std::string& name : Names()) EXPECT_NE(name[0], '.') << name;
}

}  // namespace
}  // namespace ripplekv
