#pragma once

#include "absl/status/status.h"

namespace ripplekv {

/// Work that the engine's thread does between requests, in small slices: calibration. All calls come from that thread.
class BackgroundJob {
 public:
  virtual ~BackgroundJob() = default;
  virtual bool done() const = 0;
  /// One slice, at most one layer of one calibration example. An error ends the job.
  virtual absl::Status Step() = 0;
  /// The last call, exactly once: OK where done() became true, Step's error, or CANCELLED where the engine stops.
  virtual void OnEnd(absl::Status status) = 0;
};

}  // namespace ripplekv
