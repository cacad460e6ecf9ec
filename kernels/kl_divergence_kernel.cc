#include "kernels/isa_functions.h"
#include "kernels/simd.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

constexpr int64_t kBlock = 1024;  // elements summed in fp32 before they go to the double

/// Sum over i of term(i, n), where n < 16 asks for the first n lanes only (the others must be 0).
template <typename Term>
RIPPLEKV_INLINE double BlockedSum(int64_t n, const Term& term) {
  double total = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = n - block < kBlock ? n : block + kBlock;
    Vec sum = Zero();
    int64_t i = block;
    for (; i + kLanes <= end; i += kLanes) sum = Add(sum, term(i, int64_t{kLanes}));
    if (i < end) sum = Add(sum, term(i, end - i));
    total += Sum(sum);
  }
  return total;
}

RIPPLEKV_INLINE Vec LoadUpTo(const float* p, int64_t n, float rest) {
  return n == kLanes ? Load(p) : LoadPart(p, n, rest);
}

/// log softmax(x)[i] = (x[i] - max) - log_sum
struct Normalizer {
  float max;
  float log_sum;

  RIPPLEKV_INLINE Vec operator()(Vec x) const { return Sub(Sub(x, Set(max)), Set(log_sum)); }
};

Normalizer Normalize(const float* logits, int64_t n) {
  const float lowest = -__builtin_inff();
  Vec high = Set(lowest);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) high = Max(high, Load(logits + i));
  if (i < n) high = Max(high, LoadPart(logits + i, n - i, lowest));
  const float max = MaxLane(high);
  const double sum = BlockedSum(n, [&](int64_t at, int64_t count) RIPPLEKV_INLINE_LAMBDA {
    return Exp(Sub(LoadUpTo(logits + at, count, lowest), Set(max)));
  });
  return {max, static_cast<float>(__builtin_log(sum))};
}

/// p (log p - log q), 0 where p is 0.
RIPPLEKV_INLINE Vec Term(Vec log_p, Vec log_q) {
  const Vec p = Exp(log_p);
  return IfLess(Zero(), p, Mul(p, Sub(log_p, log_q)), p);
}

}  // namespace

void LogSoftmax(const float* logits, int64_t n, float* out) {
  const Normalizer normalizer = Normalize(logits, n);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, normalizer(Load(logits + i)));
  if (i < n) StorePart(out + i, n - i, normalizer(LoadPart(logits + i, n - i)));
}

double KlDivergence(const float* p, const float* q, int64_t n) {
  const float lowest = -__builtin_inff();
  return BlockedSum(n, [&](int64_t at, int64_t count) RIPPLEKV_INLINE_LAMBDA {
    return Term(LoadUpTo(p + at, count, lowest), LoadUpTo(q + at, count, 0));
  });
}

double KlDivergenceOfLogits(const float* p, const float* q, int64_t n) {
  const float lowest = -__builtin_inff();
  const Normalizer of_p = Normalize(p, n);
  const Normalizer of_q = Normalize(q, n);
  return BlockedSum(n, [&](int64_t at, int64_t count) RIPPLEKV_INLINE_LAMBDA {
    return Term(of_p(LoadUpTo(p + at, count, lowest)), of_q(LoadUpTo(q + at, count, 0)));
  });
}

}  // namespace ripplekv::RIPPLEKV_ISA
