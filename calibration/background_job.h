#pragma once

#include "absl/status/status.h"

namespace ripplekv {

/// Long work cut into slices, so that the one thread that owns the model can serve requests between
/// them.
///
/// The thread calls Step() until done() is true or Step() fails, then destroys the job; it may also
/// destroy an unfinished job (shutdown). One slice takes no longer than about one layer of one
/// prompt.
class BackgroundJob {
 public:
  virtual ~BackgroundJob() = default;

  /// Runs one slice. After an error the job is over.
  virtual absl::Status Step() = 0;
  virtual bool done() const = 0;
};

}  // namespace ripplekv
