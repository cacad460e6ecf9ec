#pragma once

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "ripplekv/v1/calibration.grpc.pb.h"
#include "ripplekv/v1/decode.grpc.pb.h"
#include "tests/client/message_builders.h"

namespace ripplekv {

// What a client sent as metadata `name`; empty: nothing.
inline std::string HeaderOf(const grpc::ServerContext& context, const std::string& name) {
  const auto found = context.client_metadata().find(name);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

// Answers by the text of the prompt, on a free port of this machine:
//   "slow"    a chunk, then nothing until the caller leaves
//   "invalid" INVALID_ARGUMENT with BadRequest
//   "full"    RESOURCE_EXHAUSTED with RetryInfo
//   "cut"     a chunk, then an OK status without `complete`
//   "long"    a million chunks
//   else      the prompt in two chunks (a chat: its messages' texts joined by '|'), then `complete`
class ScriptedService : public v1::DecodeService::Service,
                        public v1::CalibrationService::Service,
                        public grpc::health::v1::Health::Service {
 public:
  using Responses = grpc::ServerWriter<v1::GenerateResponse>;

  ScriptedService() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::DecodeService::Service*>(this));
    builder.RegisterService(static_cast<v1::CalibrationService::Service*>(this));
    builder.RegisterService(static_cast<grpc::health::v1::Health::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~ScriptedService() override { Stop(); }

  void Stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  v1::GenerateRequest last_request;  // read after the call
  std::string last_request_id;
  std::string last_context_key;
  std::atomic<int> generated{0};
  v1::ScoreRequest last_score;
  v1::CreateContextRequest last_context;
  v1::PlanBudgetsRequest last_plan_request;
  v1::CalibrateModelRequest last_calibration;
  std::atomic<bool> cancelled{false};
  std::atomic<int> health_checks{0};
  std::atomic<int> serving_after{0};  // health checks that say NOT_SERVING first

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        Responses* writer) override {
    last_request = *request;
    ++generated;
    last_request_id = HeaderOf(*context, "x-request-id");
    last_context_key = HeaderOf(*context, "x-ripplekv-context");
    const std::string returned = last_request_id.empty() ? "made" : last_request_id;
    std::string text = request->text();
    for (const auto& message : request->chat().messages()) {
      text += (text.empty() ? "" : "|") + message.content();
    }
    // As the servers do it where a call fails before its first message.
    if (text == "invalid") {
      context->AddTrailingMetadata("x-request-id", returned);
      return Invalid();
    }
    context->AddInitialMetadata("x-request-id", returned);
    if (text == "full") return Full();
    if (text == "long") {
      for (int i = 0; i < 1000000; ++i) {
        if (!Write(writer, "0123456789012345678901234567890123456789\n")) break;
      }
      cancelled = true;
      return grpc::Status::OK;
    }
    Write(writer, text.substr(0, text.size() / 2));
    if (text == "slow") {
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      cancelled = true;
      return grpc::Status::CANCELLED;
    }
    Write(writer, text.substr(text.size() / 2));
    if (text == "cut") return grpc::Status::OK;
    v1::GenerateResponse last;
    *last.mutable_complete() = TestComplete();
    writer->Write(last);
    return grpc::Status::OK;
  }

  // A continuation's tokens are its bytes; the first continuation is the likeliest.
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest* request,
                     v1::ScoreResponse* response) override {
    last_score = *request;
    if (request->text() == "invalid") return Invalid();
    for (const v1::Continuation& continuation : request->continuations()) {
      v1::ContinuationScore& score = *response->add_continuations();
      score.set_greedy(response->continuations_size() == 1);
      for (const char byte : continuation.text()) {
        v1::TokenScore& token = *score.add_tokens();
        token.set_token(std::string(1, byte));
        token.set_logprob(-0.5f * static_cast<float>(response->continuations_size()));
        score.set_logprob(score.logprob() + token.logprob());
      }
    }
    response->mutable_usage()->set_prompt_tokens(9);
    return grpc::Status::OK;
  }

  grpc::Status CreateContext(grpc::ServerContext* context, const v1::CreateContextRequest* request,
                             v1::CreateContextResponse* response) override {
    last_context = *request;
    last_context_key = HeaderOf(*context, "x-ripplekv-context");
    *response->mutable_context() = TestContext();
    return grpc::Status::OK;
  }

  grpc::Status GetContext(grpc::ServerContext* context, const v1::GetContextRequest* request,
                          v1::GetContextResponse* response) override {
    last_context_key = HeaderOf(*context, "x-ripplekv-context");
    if (request->context_id() != TestContext().context_id()) {
      return grpc::Status(grpc::NOT_FOUND, "there is no context '" + request->context_id() + "'");
    }
    *response->mutable_context() = TestContext();
    return grpc::Status::OK;
  }

  // Two contexts, one a page.
  grpc::Status ListContexts(grpc::ServerContext*, const v1::ListContextsRequest* request,
                            v1::ListContextsResponse* response) override {
    v1::Context context = TestContext();
    if (request->page_token().empty()) {
      context.set_context_id("aa");
      response->set_next_page_token("aa");
    }
    *response->add_contexts() = context;
    return grpc::Status::OK;
  }

  grpc::Status DeleteContext(grpc::ServerContext*, const v1::DeleteContextRequest* request,
                             v1::DeleteContextResponse*) override {
    if (request->context_id() == TestContext().context_id()) return grpc::Status::OK;
    return grpc::Status(grpc::NOT_FOUND, "there is no context '" + request->context_id() + "'");
  }

  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    const std::string& text =
        request->has_chat() ? request->chat().messages(0).content() : request->text();
    for (const char byte : text) {
      response->add_token_ids(static_cast<unsigned char>(byte));
      response->add_tokens(std::string(1, byte));
    }
    return grpc::Status::OK;
  }

  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    for (const int id : request->token_ids())
      response->mutable_raw()->push_back(static_cast<char>(id));
    response->set_text("text");
    return grpc::Status::OK;
  }

  grpc::Status CalibrateModel(grpc::ServerContext*, const v1::CalibrateModelRequest* request,
                              grpc::ServerWriter<v1::CalibrateModelResponse>* writer) override {
    last_calibration = *request;
    v1::CalibrateModelResponse response;
    response.mutable_started()->set_job_id("job");
    writer->Write(response);
    for (int i = 0; i <= 100; ++i) {
      response.mutable_progress()->set_examples_done(i * 24 / 100);
      response.mutable_progress()->set_examples_total(24);
      response.mutable_progress()->set_fraction(i / 100.0);
      writer->Write(response);
    }
    *response.mutable_complete()->mutable_profile() = TestProfile({0.5, 0.25}).profile();
    response.mutable_complete()->set_in_force(true);
    writer->Write(response);
    return grpc::Status::OK;
  }

  // A running one and one that failed, one a page.
  grpc::Status ListCalibrations(grpc::ServerContext*, const v1::ListCalibrationsRequest* request,
                                v1::ListCalibrationsResponse* response) override {
    const bool first = request->page_token().empty();
    *response->add_calibrations() =
        TestCalibration(first ? v1::CALIBRATION_STATE_RUNNING : v1::CALIBRATION_STATE_FAILED);
    if (first) response->set_next_page_token("2");
    return grpc::Status::OK;
  }

  grpc::Status CancelCalibration(grpc::ServerContext*, const v1::CancelCalibrationRequest* request,
                                 v1::CancelCalibrationResponse* response) override {
    if (request->job_id() != "calibration-2") {
      return grpc::Status(grpc::NOT_FOUND, "no calibration '" + request->job_id() + "'");
    }
    *response->mutable_calibration() = TestCalibration(v1::CALIBRATION_STATE_CANCELLED);
    return grpc::Status::OK;
  }

  grpc::Status GetProfile(grpc::ServerContext*, const v1::GetProfileRequest* request,
                          v1::GetProfileResponse* response) override {
    if (!request->profile_id().empty() && request->profile_id() != std::string(64, 'c')) {
      return grpc::Status(grpc::NOT_FOUND, "no profile " + request->profile_id());
    }
    *response = TestProfile({0.5, 0.25});
    return grpc::Status::OK;
  }

  // Two profiles, one a page.
  grpc::Status ListProfiles(grpc::ServerContext*, const v1::ListProfilesRequest* request,
                            v1::ListProfilesResponse* response) override {
    v1::Profile profile = TestProfile({0.5, 0.25}).profile();
    if (request->page_token().empty()) {
      profile.set_profile_id("cd" + std::string(62, '0'));
      response->set_next_page_token("second");
    }
    *response->add_profiles() = profile;
    return grpc::Status::OK;
  }

  grpc::Status PlanBudgets(grpc::ServerContext*, const v1::PlanBudgetsRequest* request,
                           v1::PlanBudgetsResponse* response) override {
    last_plan_request = *request;
    *response = TestPlan({300, 100});
    return grpc::Status::OK;
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    response->mutable_model()->set_name("SmolLM2");
    return grpc::Status::OK;
  }

  grpc::Status Check(grpc::ServerContext*, const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override {
    if (!request->service().empty())
      return grpc::Status(grpc::NOT_FOUND, "no service " + request->service());
    response->set_status(health_checks++ < serving_after
                             ? grpc::health::v1::HealthCheckResponse::NOT_SERVING
                             : grpc::health::v1::HealthCheckResponse::SERVING);
    return grpc::Status::OK;
  }

 private:
  static bool Write(Responses* writer, const std::string& text) {
    v1::GenerateResponse response;
    response.mutable_chunk()->set_text(text);
    return writer->Write(response);
  }

  static grpc::Status Failure(grpc::StatusCode code, const std::string& message,
                              const google::protobuf::Message& detail) {
    google::rpc::Status wire;
    wire.set_code(code);
    wire.set_message(message);
    wire.add_details()->PackFrom(detail);
    return grpc::Status(code, message, wire.SerializeAsString());
  }
  static grpc::Status Invalid() {
    google::rpc::BadRequest bad;
    auto* violation = bad.add_field_violations();
    violation->set_field("sampling.top_p");
    violation->set_description("sampling.top_p is 7: must be above 0 to 1");
    return Failure(grpc::INVALID_ARGUMENT, "the request is not valid", bad);
  }
  static grpc::Status Full() {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(3);
    return Failure(grpc::RESOURCE_EXHAUSTED, "the queue is full", retry);
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ripplekv
