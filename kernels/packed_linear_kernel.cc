#include "kernels/isa_functions.h"
#include "kernels/packed_decode.h"

namespace ripplekv::RIPPLEKV_ISA {
namespace {

// Every y[i, r] is one vector accumulator that takes 16 columns at a time in order, then Sum. Which
// of the loops below computes it changes nothing but the speed.

#if defined(__AVX512F__)
constexpr int kTileRows = 4;     // of w
constexpr int kTileBatch = 6;    // rows of x: 24 of 32 registers accumulate
constexpr int kDirectBatch = 4;  // decoding once and again beats the buffer up to here
#elif defined(__AVX2__)
constexpr int kTileRows = 2;
constexpr int kTileBatch = 2;
constexpr int kDirectBatch = 1;
#else
constexpr int kTileRows = 1;
constexpr int kTileBatch = 2;
constexpr int kDirectBatch = 1;
#endif

constexpr int kBufferColumns = 768;  // decoded at a time: kTileRows of them stay in the first cache
constexpr int kPrefetchBytes = 4096;

struct Task {
  const PackedMatrix& w;
  const float* x;
  int64_t x_stride;
  int m;
  float* y;
  int64_t y_stride;
};

template <int rows, int batch>
struct Tile {
  Vec sum[rows][batch];

  RIPPLEKV_INLINE void Clear() {
    Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      Unroll<batch>([&](auto i) RIPPLEKV_INLINE_LAMBDA { sum[r.value][i.value] = Zero(); });
    });
  }

  RIPPLEKV_INLINE void Add(const Vec (&w)[rows], const float* x, int64_t x_stride) {
    Unroll<batch>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      const Vec xi = Load(x + i.value * x_stride);
      Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
        sum[r.value][i.value] = Fma(w[r.value], xi, sum[r.value][i.value]);
      });
    });
  }

  RIPPLEKV_INLINE void Write(float* y, int64_t y_stride) const {
    Unroll<batch>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      float* yi = y + i.value * y_stride;
      if constexpr (rows == 4) {
        StoreSums(yi, sum[0][i.value], sum[1][i.value], sum[2][i.value], sum[3][i.value]);
      } else {
        Unroll<rows>([&](auto r)
                         RIPPLEKV_INLINE_LAMBDA { yi[r.value] = Sum(sum[r.value][i.value]); });
      }
    });
  }
};

/// Adds the last `tail` columns, decoded and padded with zeros, as one more group of 32.
template <typename D, int rows, int batch>
RIPPLEKV_INLINE void AddTail(const Task& t, int64_t row, int first, Tile<rows, batch>* tile) {
  const int64_t tail = t.w.cols % kDecodeElements;
  if (tail == 0) return;
  const int64_t begin = t.w.cols - tail;
  Vec low[rows], high[rows];
  for (int r = 0; r < rows; ++r) {
    DecodePart<D>(t.w.data + (row + r) * t.w.row_bytes + begin / kDecodeElements * D::kBytes, tail,
                  &low[r], &high[r]);
  }
  float x[batch][kDecodeElements] = {};
  for (int i = 0; i < batch; ++i) {
    const float* source = t.x + (first + i) * t.x_stride + begin;
    for (int64_t k = 0; k < tail; ++k) x[i][k] = source[k];
  }
  tile->Add(low, x[0], kDecodeElements);
  tile->Add(high, x[0] + kLanes, kDecodeElements);
}

/// Decodes in registers: for few rows of x.
template <typename D, int rows, int batch>
void Direct(const Task& t, int64_t row, int first) {
  Tile<rows, batch> tile;
  tile.Clear();
  const std::byte* p = t.w.data + row * t.w.row_bytes;
  const float* x = t.x + first * t.x_stride;
  const int64_t blocks = t.w.cols / kDecodeElements;
  for (int64_t b = 0; b < blocks; ++b) {
    Vec low[rows], high[rows];
    Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      const std::byte* block = p + r.value * t.w.row_bytes;
      __builtin_prefetch(block + kPrefetchBytes);
      D::Decode(block, &low[r.value], &high[r.value]);
    });
    tile.Add(low, x, t.x_stride);
    tile.Add(high, x + kLanes, t.x_stride);
    p += D::kBytes;
    x += kDecodeElements;
  }
  AddTail<D>(t, row, first, &tile);
  tile.Write(t.y + first * t.y_stride + row, t.y_stride);
}

/// Rows [row, row + rows) of w from the buffer, for the rows [first, first + batch) of x and some
/// columns.
template <int rows, int batch>
RIPPLEKV_INLINE void FromBuffer(const float* buffer, const float* x, int64_t x_stride,
                                int64_t columns, Tile<rows, batch>* tile) {
  for (int64_t k = 0; k < columns; k += kLanes) {
    Vec w[rows];
    Unroll<rows>([&](auto r) RIPPLEKV_INLINE_LAMBDA {
      w[r.value] = Load(buffer + r.value * kBufferColumns + k);
    });
    tile->Add(w, x + k, x_stride);
  }
}

template <typename D, int rows, int batch>
void BufferedGroup(const Task& t, int64_t row, const float* buffer, int64_t begin, int64_t columns,
                   int first, float (*saved)[kTileRows][kLanes]) {
  Tile<rows, batch> tile;
  if (begin == 0) {
    tile.Clear();
  } else {
    for (int i = 0; i < batch; ++i) {
      for (int r = 0; r < rows; ++r) tile.sum[r][i] = Load(saved[first + i][r]);
    }
  }
  FromBuffer<rows, batch>(buffer, t.x + first * t.x_stride + begin, t.x_stride, columns, &tile);
  if (begin + columns == t.w.cols / kDecodeElements * kDecodeElements) {
    AddTail<D>(t, row, first, &tile);
    tile.Write(t.y + first * t.y_stride + row, t.y_stride);
  } else {
    for (int i = 0; i < batch; ++i) {
      for (int r = 0; r < rows; ++r) Store(saved[first + i][r], tile.sum[r][i]);
    }
  }
}

/// Decodes kTileRows rows once and uses them for all rows of x.
template <typename D>
void Buffered(const Task& t, int64_t row) {
  alignas(64) float buffer[kTileRows * kBufferColumns];
  alignas(64) float saved[16][kTileRows][kLanes];
  const int64_t whole = t.w.cols / kDecodeElements * kDecodeElements;
  for (int64_t begin = 0; begin < whole; begin += kBufferColumns) {
    const int64_t columns = whole - begin < kBufferColumns ? whole - begin : kBufferColumns;
    for (int r = 0; r < kTileRows; ++r) {
      const std::byte* p =
          t.w.data + (row + r) * t.w.row_bytes + begin / kDecodeElements * D::kBytes;
      float* out = buffer + r * kBufferColumns;
      for (int64_t k = 0; k < columns; k += kDecodeElements) {
        Vec low, high;
        __builtin_prefetch(p + kPrefetchBytes);
        D::Decode(p, &low, &high);
        Store(out + k, low);
        Store(out + k + kLanes, high);
        p += D::kBytes;
      }
    }
    int first = 0;
    while (first < t.m) {
      // Even groups: 16 rows go as 6 + 5 + 5.
      const int left = t.m - first;
      const int groups = (left + kTileBatch - 1) / kTileBatch;
      const int batch = (left + groups - 1) / groups;
      Unroll<kTileBatch>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
        if (batch == i.value + 1) {
          BufferedGroup<D, kTileRows, i.value + 1>(t, row, buffer, begin, columns, first, saved);
        }
      });
      first += batch;
    }
  }
}

template <typename D, int rows>
RIPPLEKV_INLINE void DirectRows(const Task& t, int64_t row) {
  for (int first = 0; first < t.m; first += kDirectBatch) {
    const int batch = t.m - first < kDirectBatch ? t.m - first : kDirectBatch;
    Unroll<kDirectBatch>([&](auto i) RIPPLEKV_INLINE_LAMBDA {
      if (batch == i.value + 1) Direct<D, rows, i.value + 1>(t, row, first);
    });
  }
}

template <typename D>
void Linear(const Task& t, int64_t row_begin, int64_t row_end) {
  int64_t row = row_begin;
  if (t.m <= kDirectBatch || t.w.cols < kDecodeElements) {
    for (; row + kTileRows <= row_end; row += kTileRows) DirectRows<D, kTileRows>(t, row);
  } else {
    for (; row + kTileRows <= row_end; row += kTileRows) Buffered<D>(t, row);
  }
  for (; row < row_end; ++row) DirectRows<D, 1>(t, row);
}

}  // namespace

void PackedLinear(const PackedMatrix& w, const float* x, int64_t x_stride, int m, float* y,
                  int64_t y_stride, int64_t row_begin, int64_t row_end) {
  const Task task{w, x, x_stride, m, y, y_stride};
  WithDecoder(w.type, [&](auto d) RIPPLEKV_INLINE_LAMBDA {
    Linear<decltype(d)>(task, row_begin, row_end);
  });
}

}  // namespace ripplekv::RIPPLEKV_ISA
