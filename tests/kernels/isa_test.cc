#include "kernels/isa.h"

#include <gtest/gtest.h>

namespace ripplekv {
namespace {

TEST(IsaTest, TheBestIsTheWidestSupported) {
  EXPECT_TRUE(IsaSupported(Isa::kBase));
  EXPECT_TRUE(IsaSupported(BestIsa()));
  for (Isa isa : kIsas) {
    EXPECT_EQ(IsaSupported(isa), isa <= BestIsa()) << IsaName(isa);
  }
}

}  // namespace
}  // namespace ripplekv
