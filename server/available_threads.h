#pragma once

#include <string>

namespace ripplekv {

/// Processors that this process may use at once: those of its affinity mask, and no more than the
/// CPU time its cgroup allows (version 2's cpu.max, version 1's cpu.cfs_quota_us), rounded up. At
/// least 1.
int AvailableThreads();

/// The processors that cgroup v2's "quota period" ("max 100000", "150000 100000") allows, rounded
/// up; 0: no limit, or text that says nothing.
int ProcessorsOfCpuMax(const std::string& text);

}  // namespace ripplekv
