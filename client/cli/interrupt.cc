#include "client/cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

#include "client/cli/cli.h"

namespace ripplekv {

void WatchInterrupts(Canceller& canceller) {
  struct sigaction action{};
  if (sigaction(SIGINT, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  // A thread instead of a handler: cancelling a call takes locks.
  std::thread([interrupt, &canceller] {
    int signal = 0;
    while (sigwait(&interrupt, &signal) == 0) {
      if (canceller.Cancel()) continue;
      if (isatty(STDERR_FILENO) == 1) (void)!write(STDERR_FILENO, "\n", 1);
      _exit(kExitInterrupted);
    }
  }).detach();
}

}  // namespace ripplekv
