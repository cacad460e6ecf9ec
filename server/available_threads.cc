#include "server/available_threads.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ripplekv {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// This process's group below the mount point of `controller` (version 2: ""), and all above it: a
/// limit of any of them holds.
std::vector<std::string> Groups(const std::string& controller) {
  std::vector<std::string> groups = {""};
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "id:controllers:path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers =
        absl::StrCat(",", line.substr(first + 1, second - first - 1), ",");
    if (!absl::StrContains(controllers, absl::StrCat(",", controller, ","))) continue;
    for (std::string path = line.substr(second + 1); path.size() > 1;
         path.resize(path.rfind('/'))) {
      groups.push_back(path);
    }
  }
  return groups;
}

}  // namespace

int ProcessorsOfCpuMax(const std::string& text) {
  std::istringstream words(text);
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min(1e6, (quota + period - 1) / period));
}

int AvailableThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int threads = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const auto limit = [&](const std::string& text) {
    if (const int most = ProcessorsOfCpuMax(text); most > 0) threads = std::min(threads, most);
  };
  for (const std::string& group : Groups(""))
    limit(FirstLine("/sys/fs/cgroup" + group + "/cpu.max"));
  for (const std::string& group : Groups("cpu")) {
    const std::string folder = "/sys/fs/cgroup/cpu" + group;
    limit(FirstLine(folder + "/cpu.cfs_quota_us") + " " + FirstLine(folder + "/cpu.cfs_period_us"));
  }
  return std::max(1, threads);
}

}  // namespace ripplekv
