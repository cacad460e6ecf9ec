#pragma once

#include "client/canceller.h"

namespace ripplekv {

// From now on Ctrl-C (SIGINT) cancels the call that runs under `canceller`, or ends the program
// with 130 where none does. Call once, before any other thread starts; `canceller` must outlive the
// program's main thread. Where the parent told us to ignore SIGINT (a job in a script's
// background), it stays ignored.
void WatchInterrupts(Canceller& canceller);

}  // namespace ripplekv
