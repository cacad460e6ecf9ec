#include "server/rpc/context_queries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ripplekv {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::chrono::milliseconds kIdle = std::chrono::hours(1);

class ContextQueriesTest : public testing::Test {
 protected:
  std::string Add(const std::string& owner, int64_t tokens) {
    const Clock::time_point now = Clock::now();
    auto slot = contexts_.Reserve(10, now);
    EXPECT_TRUE(slot.ok()) << slot.status();
    ContextInfo info;
    info.tokens = tokens;
    info.page_bytes = 10;
    info.origin = std::make_shared<ContextOrigin>();
    return contexts_.Add(*std::move(slot), owner, std::move(info), now);
  }

  absl::Status Get(const std::string& caller, const std::string& id) {
    v1::GetContextRequest request;
    request.set_context_id(id);
    response_.Clear();
    return GetContext(contexts_, kIdle, caller, request, &response_);
  }

  absl::Status Delete(const std::string& caller, const std::string& id) {
    v1::DeleteContextRequest request;
    request.set_context_id(id);
    return DeleteContext(contexts_, caller, request);
  }

  std::vector<std::string> List(const std::string& caller, int page_size, std::string* token) {
    v1::ListContextsRequest request;
    request.set_page_size(page_size);
    request.set_page_token(*token);
    v1::ListContextsResponse response;
    EXPECT_TRUE(ListContexts(contexts_, kIdle, caller, request, &response).ok());
    std::vector<std::string> ids;
    for (const v1::Context& context : response.contexts()) ids.push_back(context.context_id());
    *token = response.next_page_token();
    return ids;
  }

  ContextRegistry contexts_{{.memory_bytes = 1000, .idle = kIdle}};
  v1::GetContextResponse response_;
};

TEST_F(ContextQueriesTest, AnothersContextIsAsOneThatNeverWas) {
  const std::string mine = Add("me", 7);
  EXPECT_TRUE(Get("me", mine).ok());
  EXPECT_EQ(response_.context().context_id(), mine);
  EXPECT_EQ(response_.context().tokens(), 7);
  std::string unknown = mine;
  unknown[0] = unknown[0] == '0' ? '1' : '0';
  // The answers differ by the id that was asked for and nothing else.
  const auto same = [&](absl::Status theirs, absl::Status none) {
    EXPECT_EQ(theirs.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
    std::string text(theirs.message()), expected(none.message());
    text.replace(text.find(mine), mine.size(), "ID");
    expected.replace(expected.find(unknown), unknown.size(), "ID");
    EXPECT_EQ(text, expected);
  };
  same(Get("you", mine), Get("me", unknown));
  same(Delete("you", mine), Delete("me", unknown));
  same(UseContext(contexts_, "you", mine).status(), UseContext(contexts_, "me", unknown).status());
  std::string token;
  EXPECT_TRUE(List("you", 10, &token).empty());
  EXPECT_TRUE(Get("me", mine).ok());
}

TEST_F(ContextQueriesTest, AUsedContextIsPinnedAndCounted) {
  const std::string id = Add("me", 7);
  auto none = UseContext(contexts_, "me", "");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_EQ(OriginOf(none->get()), nullptr);
  auto lease = UseContext(contexts_, "me", id);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_NE(OriginOf(lease->get()), nullptr);
  ASSERT_TRUE(Get("me", id).ok());
  EXPECT_EQ(response_.context().users(), 1);
  lease->reset();
  ASSERT_TRUE(Get("me", id).ok());
  EXPECT_EQ(response_.context().users(), 0);
  EXPECT_TRUE(Delete("me", id).ok());
  EXPECT_EQ(Get("me", id).code(), absl::StatusCode::kNotFound);
}

TEST_F(ContextQueriesTest, PagesJoinToAllInOrder) {
  std::vector<std::string> all;
  for (int i = 0; i < 5; ++i) all.push_back(Add("me", i));
  std::sort(all.begin(), all.end());
  std::vector<std::string> found;
  std::string token;
  int pages = 0;
  do {
    for (std::string& id : List("me", 2, &token)) found.push_back(std::move(id));
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(found, all);
  EXPECT_EQ(pages, 3);
  // A last page that is full is the last one all the same.
  EXPECT_EQ(List("me", 5, &token).size(), 5u);
  EXPECT_EQ(token, "");
}

TEST_F(ContextQueriesTest, NamesWhatIsWrong) {
  EXPECT_THAT(std::string(Get("me", "").message()), StartsWith("context_id is empty"));
  EXPECT_THAT(std::string(Get("me", std::string(129, 'a')).message()),
              StartsWith("context_id is 129 bytes"));
  v1::ListContextsRequest request;
  v1::ListContextsResponse response;
  request.set_page_size(-1);
  EXPECT_THAT(std::string(ListContexts(contexts_, kIdle, "me", request, &response).message()),
              HasSubstr("page_size is -1: must be 0 to 1000"));
}

}  // namespace
}  // namespace ripplekv
