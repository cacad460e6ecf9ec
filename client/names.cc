#include "client/names.h"

#include "absl/strings/str_cat.h"
#include "client/format.h"

namespace ripplekv {

std::string NameOf(v1::ComputeType type) {
  switch (type) {
    case v1::COMPUTE_TYPE_FP32:
      return "fp32";
    case v1::COMPUTE_TYPE_BF16:
      return "bf16";
    default:
      return absl::StrCat("compute type ", static_cast<int>(type));
  }
}

std::string NameOf(v1::KvType type) {
  switch (type) {
    case v1::KV_TYPE_FP32:
      return "fp32";
    case v1::KV_TYPE_BF16:
      return "bf16";
    case v1::KV_TYPE_INT8:
      return "int8";
    case v1::KV_TYPE_INT4:
      return "int4";
    default:
      return absl::StrCat("KV type ", static_cast<int>(type));
  }
}

std::string NameOf(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_NONE:
      return "none";
    case v1::POOLING_MAX:
      return "max";
    case v1::POOLING_MEAN:
      return "mean";
    default:
      return absl::StrCat("pooling ", static_cast<int>(pooling));
  }
}

std::string NameOf(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_END_OF_TEXT:
      return "end of text";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop string";
    case v1::FINISH_REASON_STOP_TOKEN:
      return "stop token";
    case v1::FINISH_REASON_MAX_TOKENS:
      return "max tokens";
    default:
      return absl::StrCat("finish reason ", static_cast<int>(reason));
  }
}

std::string NameOf(v1::CalibrationState state) {
  switch (state) {
    case v1::CALIBRATION_STATE_RUNNING:
      return "running";
    case v1::CALIBRATION_STATE_SUCCEEDED:
      return "succeeded";
    case v1::CALIBRATION_STATE_FAILED:
      return "failed";
    case v1::CALIBRATION_STATE_CANCELLED:
      return "cancelled";
    default:
      return absl::StrCat("calibration state ", static_cast<int>(state));
  }
}

std::string Describe(const v1::Allocator& allocator) {
  const auto ripple = [](const v1::RippleAllocator& parameters) {
    return absl::StrCat("r ", FormatNumber(parameters.r()), ", gamma ",
                        FormatNumber(parameters.gamma()),
                        parameters.map() == v1::SIGNAL_MAP_LOG    ? ", log"
                        : parameters.map() == v1::SIGNAL_MAP_RANK ? ", rank"
                                                                  : "");
  };
  switch (allocator.allocator_case()) {
    case v1::Allocator::kRipple:
      return absl::StrCat("ripple (", ripple(allocator.ripple()), ")");
    case v1::Allocator::kUniform:
      return "uniform";
    case v1::Allocator::kSqrt:
      return "square root of the sensitivity";
    case v1::Allocator::kInverseRipple:
      return absl::StrCat("inverse ripple (", ripple(allocator.inverse_ripple().ripple()), ")");
    case v1::Allocator::kShuffledRipple:
      return absl::StrCat("shuffled ripple (", ripple(allocator.shuffled_ripple().ripple()),
                          ", seed ", allocator.shuffled_ripple().seed(), ")");
    case v1::Allocator::kIsolatedDamage:
      return absl::StrCat("isolated damage at ",
                          FormatNumber(allocator.isolated_damage().retention()), " (",
                          ripple(allocator.isolated_damage().ripple()), ")");
    case v1::Allocator::kLocalResponse:
      return absl::StrCat("local response (", ripple(allocator.local_response().ripple()), ")");
    case v1::Allocator::kPyramid:
      return absl::StrCat("pyramid (beta ", FormatNumber(allocator.pyramid().beta()), ")");
    case v1::Allocator::kMultipliers:
      return "given multipliers";
    case v1::Allocator::kPositions:
      return "given positions";
    case v1::Allocator::kDamageCurves:
      return allocator.damage_curves().least_share() > 0
                 ? absl::StrCat("damage curves (at least ",
                                FormatPercent(allocator.damage_curves().least_share()),
                                " of the mean)")
                 : "damage curves";
    case v1::Allocator::ALLOCATOR_NOT_SET:
      return "";
  }
  return "";
}

std::string Describe(const v1::CacheSize& size) {
  switch (size.size_case()) {
    case v1::CacheSize::kRetention:
      return absl::StrCat("retention ", FormatNumber(size.retention()));
    case v1::CacheSize::kTotalPositions:
      return absl::StrCat(FormatCount(size.total_positions()), " positions over all layers");
    case v1::CacheSize::kFull:
      return "every position";
    case v1::CacheSize::kTotalBytes:
      return absl::StrCat(FormatBytes(size.total_bytes()), " over all layers");
    case v1::CacheSize::kTargetMeanKl:
      return absl::StrCat("mean KL ", FormatNumber(size.target_mean_kl()), " at most");
    case v1::CacheSize::SIZE_NOT_SET:
      return "";
  }
  return "";
}

std::string Describe(const v1::Selector& selector) {
  const auto pooled = [](const auto& parameters) {
    return absl::StrCat("kernel ", parameters.kernel(), ", pooling ", NameOf(parameters.pooling()));
  };
  switch (selector.selector_case()) {
    case v1::Selector::kSnapkv:
      return absl::StrCat("SnapKV (window ", selector.snapkv().window(), ", ",
                          pooled(selector.snapkv()), ")");
    case v1::Selector::kH2O:
      return absl::StrCat("H2O (window ", selector.h2o().window(), ", ",
                          FormatCount(selector.h2o().queries()), " queries",
                          selector.h2o().normalised() ? ", normalised)" : ")");
    case v1::Selector::kRecentAttention:
      return absl::StrCat("recent attention (window ", selector.recent_attention().window(), ", ",
                          FormatCount(selector.recent_attention().queries()), " queries, ",
                          pooled(selector.recent_attention()), ")");
    case v1::Selector::kMixed:
      return absl::StrCat(FormatNumber(selector.mixed().weight()), " SnapKV (window ",
                          selector.mixed().snapkv().window(), ", ",
                          pooled(selector.mixed().snapkv()), ") + ",
                          FormatNumber(1 - selector.mixed().weight()), " recent attention (",
                          FormatCount(selector.mixed().queries()), " queries)");
    case v1::Selector::kStreamingLlm:
      return absl::StrCat("StreamingLLM (window ", selector.streaming_llm().window(), ")");
    case v1::Selector::kRandom:
      return absl::StrCat("random (window ", selector.random().window(), ", seed ",
                          selector.random().seed(), ")");
    case v1::Selector::SELECTOR_NOT_SET:
      break;
  }
  return "";
}

std::string DescribeSource(const v1::Plan& plan) {
  switch (plan.source()) {
    case v1::PLAN_SOURCE_UNIFORM:
      return "without a profile";
    case v1::PLAN_SOURCE_PROFILE:
      return absl::StrCat("from profile ", ShortId(plan.profile_id()));
    case v1::PLAN_SOURCE_INLINE:
      return "from the given sensitivities";
    case v1::PLAN_SOURCE_FIXED:
      return "without a profile";
    default:
      return absl::StrCat("plan source ", static_cast<int>(plan.source()));
  }
}

std::string ShortId(const std::string& id) { return id.substr(0, 12); }

}  // namespace ripplekv
