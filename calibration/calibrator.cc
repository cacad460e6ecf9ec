#include "calibration/calibrator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/size_examples.h"
#include "model/unicode.h"

namespace ripplekv {

Calibrator::Calibrator(CalibratorOptions options, CalibratorParts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      registry_(std::make_shared<Registry>()) {}

Calibrator::~Calibrator() = default;

absl::StatusOr<std::string> Calibrator::Start(const CalibrationRequest& request,
                                              std::shared_ptr<CalibrationListener> listener) {
  if (absl::Status s = request.settings.Validate(options_.context_length); !s.ok()) return s;
  absl::StatusOr<Corpus> corpus = CorpusOf(request);
  if (!corpus.ok()) return corpus.status();
  const ProfileKey key = KeyOf(request.settings, *corpus);
  CalibrationStarted started;
  started.profile_id = ProfileId(key);
  started.settings = request.settings;

  std::shared_ptr<CalibrationJob> job;
  std::optional<CalibrationResult> stored;
  {
    const std::lock_guard lock(start_mutex_);
    job = RunningJob();
    started.joined = job != nullptr && job->key() == key && job->Hold(request.detach);
    if (!started.joined) {
      if (!request.force) {
        absl::StatusOr<std::optional<CalibrationResult>> found = Stored(key);
        if (!found.ok()) return found.status();
        stored = *std::move(found);
      }
      if (!stored.has_value()) {
        if (job != nullptr && !(job->key() == key)) {
          return absl::ResourceExhaustedError(absl::StrCat(
              "calibration ", job->id(), " runs with other settings or texts (profile ",
              ProfileId(job->key()), "); one runs at a time: ask again when it has ended"));
        }
        absl::StatusOr<std::shared_ptr<CalibrationJob>> made = NewJob(key, *corpus);
        if (!made.ok()) return made.status();
        job = *std::move(made);
        job->Hold(request.detach);
        if (absl::Status s = Submit(job); !s.ok()) return s;
      }
    }
  }
  if (stored.has_value()) {
    listener->OnStarted(started);
    listener->OnDone(*std::move(stored));
    return std::string();
  }
  started.job_id = job->id();
  listener->OnStarted(started);
  job->AddListener(std::move(listener));
  return started.job_id;
}

void Calibrator::Leave(std::string_view job_id, const CalibrationListener* listener) {
  const std::shared_ptr<CalibrationJob> job = RunningJob();
  if (job != nullptr && job->id() == job_id) job->RemoveListener(listener);
}

std::optional<CalibrationProgress> Calibrator::running() const {
  const std::shared_ptr<CalibrationJob> job = RunningJob();
  if (job == nullptr) return std::nullopt;
  return job->record().progress;
}

absl::StatusOr<CalibrationRecord> Calibrator::Cancel(std::string_view job_id,
                                                     const std::string& reason) {
  if (const auto job = RunningJob(); job != nullptr && job->id() == job_id) {
    return job->Cancel(reason);
  }
  const std::lock_guard lock(registry_->mutex);
  for (const CalibrationRecord& record : registry_->ended) {
    if (record.job_id() != job_id) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "calibration ", record.job_id(), " has ended already: it is ", JobStateName(record.state)));
  }
  return absl::NotFoundError(absl::StrCat("no calibration '", Excerpt(job_id),
                                          "' runs here, nor is it one of the last ",
                                          kRememberedJobs, " that ended"));
}

std::vector<CalibrationRecord> Calibrator::List() const {
  std::shared_ptr<CalibrationJob> job;
  std::vector<CalibrationRecord> records;
  {
    const std::lock_guard lock(registry_->mutex);
    job = registry_->job.lock();
    records.assign(registry_->ended.begin(), registry_->ended.end());
  }
  if (job != nullptr) records.push_back(job->record());
  // Where two ended at the same time, they came in any order.
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.number > b.number; });
  return records;
}

void Calibrator::Registry::OnOver(const CalibrationRecord& record) {
  const std::lock_guard lock(mutex);
  if (number == record.number) job.reset();
  ended.push_back(record);
  if (ended.size() > kRememberedJobs) ended.pop_front();
}

ProfileKey Calibrator::KeyOf(const CalibrationSettings& settings, const Corpus& corpus) const {
  ProfileKey key;
  key.model_fingerprint = options_.model_fingerprint;
  key.compute_type = options_.compute_type;
  key.settings = settings;
  key.corpus_digest = corpus.digest;
  return key;
}

std::shared_ptr<CalibrationJob> Calibrator::RunningJob() const {
  const std::lock_guard lock(registry_->mutex);
  return registry_->job.lock();
}

absl::StatusOr<Corpus> Calibrator::CorpusOf(const CalibrationRequest& request) const {
  if (const auto* texts = std::get_if<std::vector<std::string>>(&request.corpus)) {
    return CorpusFromTexts(std::string(kInlineCorpusName), *texts);
  }
  return parts_.find_corpus(std::get<std::string>(request.corpus));
}

absl::StatusOr<std::optional<CalibrationResult>> Calibrator::Stored(const ProfileKey& key) {
  absl::StatusOr<Profile> profile = parts_.store->FindMatching(key);
  if (absl::IsNotFound(profile.status())) return std::nullopt;
  if (!profile.ok()) return profile.status();
  CalibrationResult result;
  result.profile = *std::move(profile);
  result.from_store = true;
  if (auto run = parts_.store->GetRunInfo(ProfileId(key)); run.ok()) result.run = *run;
  return result;
}

absl::StatusOr<std::shared_ptr<CalibrationJob>> Calibrator::NewJob(const ProfileKey& key,
                                                                   const Corpus& corpus) {
  std::vector<std::vector<int32_t>> tokens;
  for (size_t i = 0; i < corpus.texts.size(); ++i) {
    absl::StatusOr<std::vector<int32_t>> ids = parts_.tokenize(corpus.texts[i]);
    if (!ids.ok()) {
      return absl::Status(ids.status().code(), absl::StrCat("text ", i, " of corpus '", corpus.name,
                                                            "': ", ids.status().message()));
    }
    tokens.push_back(*std::move(ids));
  }
  absl::StatusOr<std::vector<std::vector<int32_t>>> examples = MakeExamples(tokens, key.settings);
  if (!examples.ok()) return examples.status();
  absl::StatusOr<std::vector<std::vector<int32_t>>> sizes = MakeSizeExamples(tokens, key.settings);
  if (!sizes.ok()) return sizes.status();

  CalibrationJobSpec spec;
  spec.number = ++jobs_started_;
  spec.profile.key = key;
  spec.profile.model_name = options_.model_name;
  spec.profile.corpus_name = corpus.name;
  spec.profile.software_version = options_.software_version;
  spec.profile.layers = options_.layers;
  spec.examples = {.layers = *std::move(examples), .sizes = *std::move(sizes)};
  spec.threads = options_.threads;
  spec.store = parts_.store;
  spec.make_probe = parts_.make_probe;
  spec.on_profile = parts_.on_profile;
  spec.on_over = [registry = registry_](const CalibrationRecord& record) {
    registry->OnOver(record);
  };
  if (parts_.on_failure) {
    spec.on_failure = [on_failure = parts_.on_failure, id = CalibrationJobId(spec.number)](
                          const absl::Status& status) { on_failure(id, status); };
  }
  return std::make_shared<CalibrationJob>(std::move(spec));
}

absl::Status Calibrator::Submit(const std::shared_ptr<CalibrationJob>& job) {
  {
    const std::lock_guard lock(registry_->mutex);
    registry_->job = job;
    registry_->number = job->number();
  }
  return parts_.submit(job);  // refused: the job is dropped, and says so to the registry
}

}  // namespace ripplekv
