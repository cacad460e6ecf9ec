#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace ripplekv {

/// Memory as the server's arena has it: in the kernel's large pages, where it has them.
class LargePages {
 public:
  explicit LargePages(size_t bytes) : bytes_(bytes) {
    void* const p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(p);
  }
  ~LargePages() { munmap(data_, bytes_); }
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

}  // namespace ripplekv
