#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "server/engine/context_registry.h"
#include "server/engine/task.h"

namespace ripplekv {

/// The rows of all contexts by id, those of removed ones that are still in use included.
using ContextStore = absl::node_hash_map<std::string, ContextRows>;

/// Prefills and compresses a context, and hands it over.
class ContextTask final : public Task {
 public:
  /// Registry and store outlive the task.
  ContextTask(int64_t id, const TaskResources& resources, std::unique_ptr<QueuedRequest> request,
              TaskHoldings holdings, ContextRegistry* registry, ContextStore* store);

  /// Bytes that a context keeps beside its pages, which count with them: its tokens and the logits
  /// after the last one.
  static int64_t KeptBytes(const ModelConfig& config, int64_t tokens);

  bool done() const override { return done_; }
  void Complete() override;

 private:
  const ContextWork& work_item() const { return std::get<ContextWork>(request_->work); }
  absl::Status OnPrefilled() override;

  ContextRegistry* registry_;
  ContextStore* store_;
  ContextInfo info_;
  bool done_ = false;
};

}  // namespace ripplekv
