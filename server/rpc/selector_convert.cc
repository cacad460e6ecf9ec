#include "server/rpc/selector_convert.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace ripplekv {
namespace {

// `pooling` stays as it is where the message does not specify one.
absl::Status PoolingFromProto(v1::Pooling proto, const std::string& field, Pooling& pooling) {
  switch (proto) {
    case v1::POOLING_UNSPECIFIED:
      return absl::OkStatus();
    case v1::POOLING_NONE:
      pooling = Pooling::kNone;
      return absl::OkStatus();
    case v1::POOLING_MAX:
      pooling = Pooling::kMax;
      return absl::OkStatus();
    case v1::POOLING_MEAN:
      pooling = Pooling::kMean;
      return absl::OkStatus();
    default:
      return InvalidField(field, absl::StrCat("is ", static_cast<int>(proto),
                                              ": must be POOLING_NONE, POOLING_MAX or "
                                              "POOLING_MEAN"));
  }
}

v1::Pooling PoolingToProto(Pooling pooling) {
  switch (pooling) {
    case Pooling::kMax:
      return v1::POOLING_MAX;
    case Pooling::kMean:
      return v1::POOLING_MEAN;
    case Pooling::kNone:
      break;
  }
  return v1::POOLING_NONE;
}

absl::Status Read(const v1::SnapKvSelector& proto, const std::string& path, SnapKv& snapkv) {
  if (proto.has_window()) snapkv.window = proto.window();
  if (proto.has_kernel()) snapkv.kernel = proto.kernel();
  return PoolingFromProto(proto.pooling(), path + "pooling", snapkv.pooling);
}

absl::Status Read(const v1::H2oSelector& proto, const std::string&, H2o& h2o) {
  if (proto.has_window()) h2o.window = proto.window();
  if (proto.has_queries()) h2o.queries = proto.queries();
  if (proto.has_normalised()) h2o.normalised = proto.normalised();
  return absl::OkStatus();
}

absl::Status Read(const v1::RecentAttentionSelector& proto, const std::string& path,
                  RecentAttention& recent) {
  if (proto.has_window()) recent.window = proto.window();
  if (proto.has_queries()) recent.queries = proto.queries();
  if (proto.has_kernel()) recent.kernel = proto.kernel();
  return PoolingFromProto(proto.pooling(), path + "pooling", recent.pooling);
}

absl::Status Read(const v1::MixedSelector& proto, const std::string& path, MixedAttention& mixed) {
  if (proto.has_queries()) mixed.queries = proto.queries();
  if (proto.has_weight()) mixed.weight = proto.weight();
  return Read(proto.snapkv(), path + "snapkv.", mixed.snapkv);
}

absl::Status Read(const v1::StreamingLlmSelector& proto, const std::string&,
                  StreamingLlm& streaming) {
  if (proto.has_window()) streaming.window = proto.window();
  return absl::OkStatus();
}

absl::Status Read(const v1::RandomSelector& proto, const std::string&, RandomPositions& random) {
  if (proto.has_window()) random.window = proto.window();
  if (proto.has_seed()) random.seed = proto.seed();
  return absl::OkStatus();
}

// `selector`: the default, which what `proto` says replaces.
template <typename Proto, typename T>
absl::StatusOr<std::optional<SelectorSpec>> Convert(const Proto& proto, T selector,
                                                    const std::string& path) {
  const std::string own_path = absl::StrCat(path, SelectorName(selector), ".");
  if (absl::Status status = Read(proto, own_path, selector); !status.ok()) return status;
  if (absl::Status status = ValidateSelector(selector); !status.ok())
    return WithFieldPrefix(path, status);
  return SelectorSpec(selector);
}

void Write(const SnapKv& snapkv, v1::SnapKvSelector* proto) {
  proto->set_window(snapkv.window);
  proto->set_kernel(snapkv.kernel);
  proto->set_pooling(PoolingToProto(snapkv.pooling));
}

}  // namespace

absl::StatusOr<std::optional<SelectorSpec>> SelectorFromProto(const v1::Selector& proto,
                                                              const Selectors& defaults,
                                                              const std::string& path) {
  switch (proto.selector_case()) {
    case v1::Selector::kSnapkv:
      return Convert(proto.snapkv(), defaults.snapkv, path);
    case v1::Selector::kH2O:
      return Convert(proto.h2o(), defaults.h2o, path);
    case v1::Selector::kRecentAttention:
      return Convert(proto.recent_attention(), defaults.recent_attention, path);
    case v1::Selector::kMixed:
      return Convert(proto.mixed(), defaults.mixed, path);
    case v1::Selector::kStreamingLlm:
      return Convert(proto.streaming_llm(), defaults.streaming_llm, path);
    case v1::Selector::kRandom:
      return Convert(proto.random(), defaults.random, path);
    case v1::Selector::SELECTOR_NOT_SET:
      break;
  }
  return std::nullopt;
}

v1::Selector SelectorToProto(const SelectorSpec& selector) {
  v1::Selector proto;
  if (const auto* snapkv = std::get_if<SnapKv>(&selector)) {
    Write(*snapkv, proto.mutable_snapkv());
  } else if (const auto* h2o = std::get_if<H2o>(&selector)) {
    proto.mutable_h2o()->set_window(h2o->window);
    proto.mutable_h2o()->set_queries(h2o->queries);
    proto.mutable_h2o()->set_normalised(h2o->normalised);
  } else if (const auto* recent = std::get_if<RecentAttention>(&selector)) {
    proto.mutable_recent_attention()->set_window(recent->window);
    proto.mutable_recent_attention()->set_queries(recent->queries);
    proto.mutable_recent_attention()->set_kernel(recent->kernel);
    proto.mutable_recent_attention()->set_pooling(PoolingToProto(recent->pooling));
  } else if (const auto* mixed = std::get_if<MixedAttention>(&selector)) {
    Write(mixed->snapkv, proto.mutable_mixed()->mutable_snapkv());
    proto.mutable_mixed()->set_queries(mixed->queries);
    proto.mutable_mixed()->set_weight(mixed->weight);
  } else if (const auto* streaming = std::get_if<StreamingLlm>(&selector)) {
    proto.mutable_streaming_llm()->set_window(streaming->window);
  } else if (const auto* random = std::get_if<RandomPositions>(&selector)) {
    proto.mutable_random()->set_window(random->window);
    proto.mutable_random()->set_seed(random->seed);
  }
  return proto;
}

}  // namespace ripplekv
