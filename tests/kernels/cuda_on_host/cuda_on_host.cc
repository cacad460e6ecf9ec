#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration" : "cudaSuccess";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "no error";
}

namespace cuda_on_host {

uint3 block_index, thread_index;

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kWarp = 32;
constexpr unsigned kMaxThreads = 1024;

enum class State { kReady, kAtBlockBarrier, kAtExchange, kDone };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  State state = State::kDone;
  uint64_t sent[2] = {};  // of this exchange and, until all have read it, the last one
  unsigned exchanges = 0;
};

Order order = Order::kForward;
std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
unsigned current = 0;
const std::function<void()>* body = nullptr;
#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;
#endif

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "CUDA kernel on the host: %s (block %u %u %u)\n", what, block_index.x,
               block_index.y, block_index.z);
  std::abort();
}

void Yield(State state) {
  Fiber& fiber = *fibers[current];
  fiber.state = state;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(state == State::kDone ? nullptr : &fake_stack, scheduler_stack,
                                 scheduler_stack_bytes);
#endif
  swapcontext(&fiber.context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void Start() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  (*body)();
  Yield(State::kDone);
}

void Resume(unsigned thread) {
  current = thread;
  thread_index = {thread, 0, 0};
  Fiber& fiber = *fibers[thread];
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
#endif
  swapcontext(&scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

/// Lets go whoever waits for threads that are all there; whether anyone was.
bool Release(unsigned threads) {
  const auto count = [&](unsigned begin, unsigned end, State state) {
    return static_cast<unsigned>(
        std::count_if(fibers.begin() + begin, fibers.begin() + end,
                      [&](const auto& fiber) { return fiber->state == state; }));
  };
  const auto release = [&](unsigned begin, unsigned end, State state) {
    for (unsigned i = begin; i < end; ++i) {
      if (fibers[i]->state == state) fibers[i]->state = State::kReady;
    }
  };
  bool any = false;
  for (unsigned first = 0; first < threads; first += kWarp) {
    if (count(first, first + kWarp, State::kAtExchange) == kWarp) {
      release(first, first + kWarp, State::kAtExchange);
      any = true;
    }
  }
  const unsigned done = count(0, threads, State::kDone);
  if (!any && done < threads && count(0, threads, State::kAtBlockBarrier) + done == threads) {
    release(0, threads, State::kAtBlockBarrier);
    any = true;
  }
  return any;
}

void Prepare(Fiber& fiber) {
  fiber.state = State::kReady;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, Start, 0);
}

void RunBlock(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) Prepare(*fibers[i]);
  do {
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned thread = order == Order::kForward ? i : threads - 1 - i;
      if (fibers[thread]->state == State::kReady) Resume(thread);
    }
  } while (Release(threads));
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i]->state != State::kDone) Fail("threads wait at different barriers");
  }
}

}  // namespace

void SetOrder(Order new_order) { order = new_order; }

cudaError_t Launch(const cudaLaunchConfig_t& config, const std::function<void()>& kernel) {
  const dim3 grid = config.gridDim;
  const unsigned threads = config.blockDim.x;
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535 || threads < 1 || threads > kMaxThreads || threads % kWarp != 0 ||
      config.blockDim.y != 1 || config.blockDim.z != 1) {
    return cudaErrorInvalidConfiguration;
  }
  while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
  body = &kernel;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        RunBlock(threads);
      }
    }
  }
  return cudaSuccess;
}

void WaitForBlock() { Yield(State::kAtBlockBarrier); }

uint64_t Exchange(uint64_t bits, int offset) {
  const unsigned me = current;
  Fiber& fiber = *fibers[me];
  const unsigned slot = fiber.exchanges++ % 2;
  fiber.sent[slot] = bits;
  Yield(State::kAtExchange);
  const Fiber& other = *fibers[me ^ static_cast<unsigned>(offset)];
  if (offset < 1 || offset >= kWarp) Fail("an exchange beyond the warp");
  return other.sent[slot];
}

}  // namespace cuda_on_host
