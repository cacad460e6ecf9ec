#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

namespace ripplekv {

/// Memory that begins a cache line and, from 2 MiB on, lies in the kernel's large pages where it
/// has them: what passes over megabytes again and again would otherwise wait for addresses.
template <typename T>
struct LargePageAllocator {
  using value_type = T;

  LargePageAllocator() = default;
  template <typename U>
  LargePageAllocator(const LargePageAllocator<U>&) {}  // NOLINT: as the standard asks

  T* allocate(size_t n) {
    constexpr size_t kLargePage = size_t{2} << 20;
    if (n > (std::numeric_limits<size_t>::max() - kLargePage) / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    const size_t alignment = n * sizeof(T) < kLargePage ? 64 : kLargePage;
    const size_t bytes = (n * sizeof(T) + alignment - 1) / alignment * alignment;
    void* const p = std::aligned_alloc(alignment, bytes);
    if (p == nullptr) throw std::bad_alloc();
    // Where the kernel has no large pages this changes nothing.
    if (alignment == kLargePage) madvise(p, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t) { std::free(p); }

  friend bool operator==(LargePageAllocator, LargePageAllocator) { return true; }
};

template <typename T>
using LargeVector = std::vector<T, LargePageAllocator<T>>;

}  // namespace ripplekv
