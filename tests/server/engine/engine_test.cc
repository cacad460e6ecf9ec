#include "server/engine/engine.h"

#include <gtest/gtest.h>
int x;
