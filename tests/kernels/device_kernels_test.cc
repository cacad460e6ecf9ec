// Every kernel that has more than one device, on all of them: (device, type of the rows,
// tolerance). References are slow and in double precision.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/kv_codec.h"
#include "tests/kernels/device_cases.h"
#include "tests/kernels/random.h"

namespace ripplekv {
namespace {

// ---- gather ----

TEST_P(DeviceKernelsTest, GatherMovesEveryHeadsRowsAndPositions) {
  std::mt19937 random(1);
  // Rows of whole vectors, of whole words, of odd lengths; one longer than a warp moves at once.
  for (const auto& [d, gap] : {std::pair{64, 0}, {64, 6}, {10, 6}, {7, 3}, {300, 0}}) {
    const int kv_heads = 3;
    const int64_t source_rows = 90, stride = source_rows * d + gap;
    const int64_t count = 41, first_row = 5;
    const size_t bytes = static_cast<size_t>(d) * KvTypeBytes(type_);
    const KvPageLayout layout = KvPageLayout::For(
        type_, kv_heads, d, KvPageLayout::BytesForRowsPerPage(type_, kv_heads, d, 13));
    const KvData k = RandomKv(random, type_, static_cast<size_t>(kv_heads * stride));
    const KvData v = RandomKv(random, type_, static_cast<size_t>(kv_heads * stride));
    std::vector<int32_t> indices(static_cast<size_t>(kv_heads * (count + 2)));
    for (int32_t& i : indices) i = static_cast<int32_t>(random() % source_rows);
    const DeviceArray<std::byte> k_there(device_.get(), k.bytes), v_there(device_.get(), v.bytes);
    const DeviceArray<int32_t> indices_there(device_.get(), indices);
    const size_t pages = static_cast<size_t>(layout.PagesFor(first_row + count));
    for (bool all : {false, true}) {
      const DeviceArray<std::byte> arena(device_.get(), pages * layout.page_bytes);
      std::vector<std::byte*> list;  // backwards
      for (size_t p = pages; p-- > 0;) list.push_back(arena.get() + p * layout.page_bytes);
      const DeviceArray<std::byte*> list_there(device_.get(), list);
      GatherRowsArgs args;
      args.layout = layout;
      args.k = k_there.get();
      args.v = v_there.get();
      args.kv_head_stride = stride;
      args.first_position = 1000;
      args.indices = all ? nullptr : indices_there.get();
      args.indices_stride = count + 2;
      args.pages = list_there.get();
      args.first_row = first_row;
      ASSERT_TRUE(device_->GatherRows(args, 17, count).ok());
      ASSERT_TRUE(device_->GatherRows(args, 0, 17).ok());
      ASSERT_TRUE(device_->GatherRows(args, 17, 17).ok());

      std::vector<std::byte> expected(pages * layout.page_bytes, std::byte{0xff});
      for (int h = 0; h < kv_heads; ++h) {
        for (int64_t i = 0; i < count; ++i) {
          const int32_t source =
              all ? static_cast<int32_t>(i) : indices[static_cast<size_t>(h * (count + 2) + i)];
          const int64_t row = first_row + i;
          const size_t page = pages - 1 - static_cast<size_t>(row / layout.rows_per_page);
          const int in_page = static_cast<int>(row % layout.rows_per_page);
          std::byte* to = &expected[page * layout.page_bytes];
          const size_t from = static_cast<size_t>(h * stride + source * d) * KvTypeBytes(type_);
          std::memcpy(to + layout.KeyOffset(h, in_page), &k.bytes[from], bytes);
          std::memcpy(to + layout.ValueOffset(h, in_page), &v.bytes[from], bytes);
          const int32_t position = 1000 + source;
          std::memcpy(to + layout.PositionOffset(h, in_page), &position, sizeof position);
        }
      }
      EXPECT_EQ(arena.Read(), expected) << "d " << d << " gap " << gap << " all " << all;
    }
  }
}

// Rows that cannot be rounded, or are all zeros, too; the bytes are the codec's.
TEST_P(DeviceStoredRowsTest, GatherRoundsRowsAsTheCodecDoes) {
  std::mt19937 random(2);
  for (KvType type : kFloatKvTypes) {
    for (const int d : {64, 40, 7, 300}) {
      const int kv_heads = 2;
      const int64_t rows = 21, stride = rows * d;
      const size_t element = KvTypeBytes(type);
      const KvPageLayout layout = KvPageLayout::For(
          types_, type, kv_heads, d, KvPageLayout::BytesForRowsPerPage(types_, kv_heads, d, 5));
      KvData k = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
      KvData v = RandomKv(random, type, static_cast<size_t>(kv_heads * stride));
      for (KvData* data : {&k, &v}) {
        std::memset(&data->bytes[3 * static_cast<size_t>(d) * element], 0,
                    static_cast<size_t>(d) * element);  // a row of zeros
        const uint32_t infinity = 0xff800000u;
        std::memcpy(&data->bytes[(4 * static_cast<size_t>(d) + 5) * element],
                    reinterpret_cast<const std::byte*>(&infinity) + 4 - element, element);
        std::memset(&data->bytes[(6 * static_cast<size_t>(d) + 2) * element], 0xff,
                    element);  // NaN
      }
      const size_t pages = static_cast<size_t>(layout.PagesFor(rows));
      const DeviceArray<std::byte> k_there(device_.get(), k.bytes), v_there(device_.get(), v.bytes);
      const DeviceArray<std::byte> arena(device_.get(), pages * layout.page_bytes);
      std::vector<std::byte*> list;
      for (size_t p = 0; p < pages; ++p) list.push_back(arena.get() + p * layout.page_bytes);
      const DeviceArray<std::byte*> list_there(device_.get(), list);
      GatherRowsArgs args;
      args.layout = layout;
      args.k = k_there.get();
      args.v = v_there.get();
      args.kv_head_stride = stride;
      args.pages = list_there.get();
      ASSERT_TRUE(device_->GatherRows(args, 9, rows).ok());
      ASSERT_TRUE(device_->GatherRows(args, 0, 9).ok());

      std::vector<std::byte> expected(pages * layout.page_bytes, std::byte{0xff});
      for (int h = 0; h < kv_heads; ++h) {
        for (int64_t r = 0; r < rows; ++r) {
          std::byte* page =
              &expected[static_cast<size_t>(r / layout.rows_per_page) * layout.page_bytes];
          const int in_page = static_cast<int>(r % layout.rows_per_page);
          for (const auto& [side, data] : {std::pair{&layout.k, &k}, {&layout.v, &v}}) {
            const std::byte* from = &data->bytes[static_cast<size_t>(h * stride + r * d) * element];
            std::byte* to = page + layout.RowOffset(*side, h, in_page);
            std::vector<float> x(static_cast<size_t>(d));
            DecodeKvRow(side->role, type, from, nullptr, d, x.data());
            if (side->type == type) {
              std::memcpy(to, from, side->row_bytes);
            } else {
              EncodeKvRow(side->role, side->type, x.data(), d, to,
                          page + layout.ParamOffset(*side, h, in_page));
            }
          }
          const auto position = static_cast<int32_t>(r);
          std::memcpy(page + layout.PositionOffset(h, in_page), &position, sizeof position);
        }
      }
      EXPECT_EQ(arena.Read(), expected) << "from " << KvTypeName(type) << " d " << d;
    }
  }
}

// ---- value perturbation ----

struct Perturbed {
  static constexpr int kHeads = 3;
  static constexpr int64_t kRows = 40;
  Perturbed(KvType type, int d, int gap, float scale = 1) : stride(kRows * d + gap) {
    std::mt19937 random(20);
    source = RandomKv(random, type, static_cast<size_t>(kHeads * stride), scale);
    args.type = type;
    args.kv_heads = kHeads;
    args.head_dim = d;
    args.kv_head_stride = stride;
    args.first_row = 4;
    args.last_row = kRows - 5;
    args.first_position = 100;
    args.eta = 0.5f;
    args.noise = {.seed = 0x123456789, .example = 3, .layer = 12};
  }
  /// The bytes of the destination after the given ranges of rows.
  std::vector<std::byte> Run(Device* device, bool in_place,
                             const std::vector<std::pair<int64_t, int64_t>>& ranges) {
    const DeviceArray<std::byte> from(device, source.bytes);
    const DeviceArray<std::byte> to(device, source.bytes.size());
    args.source = from.get();
    args.destination = in_place ? from.get() : to.get();
    for (const auto& [begin, end] : ranges) {
      EXPECT_TRUE(device->PerturbValues(args, begin, end).ok());
    }
    return in_place ? from.Read() : to.Read();
  }
  int64_t stride;
  KvData source;
  PerturbArgs args;
};

const std::vector<std::pair<int64_t, int64_t>> kWhole = {{0, Perturbed::kRows}};
const std::vector<std::pair<int64_t, int64_t>> kParts = {{33, 40}, {0, 1}, {1, 20}, {20, 33}};

TEST_P(DeviceKernelsTest, PerturbationAddsTheStatedNoise) {
  const size_t element = KvTypeBytes(type_);
  for (const auto& [d, gap, scale] : {std::tuple{64, 24, 1.0f},
                                      {128, 0, 1.0f},
                                      {10, 6, 1.0f},
                                      {7, 3, 1.0f},
                                      {200, 0, 1.0f},
                                      {64, 0, 1e-40f},    // denormals
                                      {64, 0, 1e18f}}) {  // squares overflow fp32
    Perturbed p(type_, d, gap, scale);
    const std::vector<std::byte> result = p.Run(device_.get(), false, kWhole);
    for (int h = 0; h < Perturbed::kHeads; ++h) {
      for (int64_t r = 0; r < Perturbed::kRows; ++r) {
        double norm = 0;
        for (int c = 0; c < d; ++c) {
          norm += std::pow(p.source.values[static_cast<size_t>(h * p.stride + r * d + c)], 2);
        }
        norm = std::sqrt(norm);
        const bool touched = r >= 4 && r < Perturbed::kRows - 5;
        for (int c = 0; c < d; ++c) {
          const size_t at = static_cast<size_t>(h * p.stride + r * d + c);
          if (!touched) {
            ASSERT_EQ(std::memcmp(&result[at * element], &p.source.bytes[at * element], element),
                      0);
            continue;
          }
          const auto words = Philox4x32(
              {static_cast<uint32_t>(c / 4 + h * 65536), static_cast<uint32_t>(100 + r), 12, 3},
              {0x23456789, 1});
          const int pair = c % 4 / 2 * 2;
          const double u = (words[static_cast<size_t>(pair)] + 1.0) / 4294967296.0;
          const double w = (words[static_cast<size_t>(pair + 1)] + 1.0) / 4294967296.0;
          const double angle = 2 * std::acos(-1.0) * w;
          const double noise = 0.5 / std::sqrt(d) * norm * std::sqrt(-2 * std::log(u)) *
                               (c % 2 == 0 ? std::cos(angle) : std::sin(angle));
          const double expected = p.source.values[at] + noise;
          ASSERT_NEAR(Number(type_, &result[at * element]), expected,
                      GetParam().perturbation_tolerance * std::abs(expected) +
                          1.2e-7 * std::abs(noise) + (type_ == KvType::kF32 ? 1e-45 : 1e-40))
              << "d " << d << " head " << h << " row " << r << " lane " << c;
        }
      }
      for (size_t i = static_cast<size_t>(Perturbed::kRows * d); i < static_cast<size_t>(p.stride);
           ++i) {
        const size_t at = (static_cast<size_t>(h * p.stride) + i) * element;
        ASSERT_EQ(result[at], std::byte{0xff}) << "written between the heads";
      }
    }
  }
}

TEST_P(DeviceKernelsTest, PerturbationDoesNotDependOnRangesOrPlace) {
  for (const auto& [d, gap] : {std::pair{64, 0}, {10, 6}}) {
    Perturbed p(type_, d, gap);
    const std::vector<std::byte> whole = p.Run(device_.get(), false, kWhole);
    EXPECT_EQ(p.Run(device_.get(), false, kParts), whole);
    const std::vector<std::byte> in_place = p.Run(device_.get(), true, kParts);
    for (int h = 0; h < Perturbed::kHeads; ++h) {
      const size_t at = static_cast<size_t>(h * p.stride) * KvTypeBytes(type_);
      EXPECT_EQ(std::memcmp(&in_place[at], &whole[at],
                            static_cast<size_t>(Perturbed::kRows * d) * KvTypeBytes(type_)),
                0);
    }
  }
}

TEST_P(DeviceKernelsTest, NoPerturbationCopiesTheBits) {
  Perturbed p(type_, 64, 0);
  p.args.eta = 0;
  std::memset(&p.source.bytes[10 * 64 * KvTypeBytes(type_)], 0xff, 7 * KvTypeBytes(type_));
  EXPECT_EQ(p.Run(device_.get(), false, kWhole), p.source.bytes);
  EXPECT_EQ(p.Run(device_.get(), true, kWhole), p.source.bytes);
}

TEST_P(DeviceKernelsTest, PerturbationIsTheProcessorsOrItsNeighbour) {
  std::string why_not;
  const std::unique_ptr<Device> cpu = OpenDevice(DeviceKind::kCpu, &why_not);
  Perturbed p(type_, 64, 0);
  const std::vector<std::byte> here = p.Run(device_.get(), false, kWhole);
  const std::vector<std::byte> there = p.Run(cpu.get(), false, kWhole);
  size_t different = 0, elements = here.size() / KvTypeBytes(type_);
  for (size_t i = 0; i < elements; ++i) {
    int32_t a = 0, b = 0;
    std::memcpy(&a, &here[i * KvTypeBytes(type_)], KvTypeBytes(type_));
    std::memcpy(&b, &there[i * KvTypeBytes(type_)], KvTypeBytes(type_));
    ASSERT_LE(std::abs(static_cast<int64_t>(a) - b), 1) << i;
    different += a != b;
  }
  EXPECT_LE(different, elements / 1000);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceKernelsTest, testing::ValuesIn(FloatCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(All, DeviceStoredRowsTest, testing::ValuesIn(StoredCases()),
                         StoredCaseName);

// ---- what the CUDA seam refuses ----

class CudaRefusalTest : public testing::TestWithParam<DeviceKind> {};

TEST_P(CudaRefusalTest, NamesTheValue) {
  std::string why_not;
  const std::unique_ptr<Device> device = OpenDevice(GetParam(), &why_not);
  if (device == nullptr) GTEST_SKIP() << why_not;
  const auto attention = [&](int heads, int kv_heads, int d, int rows_per_page) {
    DecodeAttentionArgs args;
    args.layout.kv_heads = kv_heads;
    args.layout.head_dim = d;
    args.layout.rows_per_page = rows_per_page;
    args.heads = heads;
    args.sequences = 1;
    return device->DecodeAttention(args, {256, false});
  };
  const auto says = [](const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << status.ToString();
  };
  says(attention(4, 2, 513, 8), "head_dim 513");
  says(attention(5, 2, 64, 8), "5 query heads over 2 KV heads");
  says(attention(4, 2, 64, 0), "holds no row");
  says(attention(514, 2, 64, 8), "257 query heads a KV head");
  GatherRowsArgs gather;
  gather.layout.kv_heads = 2;
  says(device->GatherRows(gather, 0, 1), "give pages of at least one row");
  PerturbArgs perturb;
  says(device->PerturbValues(perturb, 0, 1), "0 KV heads");
}

INSTANTIATE_TEST_SUITE_P(All, CudaRefusalTest,
                         testing::Values(DeviceKind::kCudaOnHost, DeviceKind::kCuda),
                         [](const auto& info) { return DeviceName(info.param); });

}  // namespace
}  // namespace ripplekv
