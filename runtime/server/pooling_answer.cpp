#include "runtime/server/pooling_answer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace refrain {
namespace {

using Kind = PoolingRequest::Kind;

double length_of(const std::vector<float>& vector) {
  double sum = 0;
  for (const float x : vector) sum += double{x} * x;
  return std::sqrt(sum);
}

Json vectors_json(const PoolingRequest& request, const std::vector<PooledVector>& vectors) {
  const bool embeddings = request.kind == Kind::kEmbeddings;
  Json list = Json::array();
  for (size_t i = 0; i < vectors.size(); ++i) {
    const auto numbers = shorten(*vectors[i], request.dimensions, request.normalize);
    list.push_back({{"index", i},
                    {"object", embeddings ? "embedding" : "pooling"},
                    {embeddings ? "embedding" : "data",
                     request.base64 ? Json(base64(numbers)) : Json(numbers)}});
  }
  return list;
}

// One query goes with all that it is compared to.
std::vector<double> scores_of(const PoolingRequest& request,
                              const std::vector<PooledVector>& vectors) {
  std::vector<double> scores;
  for (size_t i = request.num_queries; i < vectors.size(); ++i) {
    const size_t query = request.num_queries == 1 ? 0 : i - request.num_queries;
    scores.push_back(cosine(*vectors[query], *vectors[i]));
  }
  return scores;
}

Json scores_json(const std::vector<double>& scores) {
  Json list = Json::array();
  for (size_t i = 0; i < scores.size(); ++i)
    list.push_back({{"index", i}, {"object", "score"}, {"score", scores[i]}});
  return list;
}

// Best first; equal ones in the request's order.
Json ranks_json(const PoolingRequest& request, const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return scores[i]; });
  if (request.top_n > 0) order.resize(std::min(order.size(), request.top_n));
  Json list = Json::array();
  for (const size_t i : order)
    list.push_back({{"index", i},
                    {"document", {{"text", request.documents[i]}}},
                    {"relevance_score", scores[i]}});
  return list;
}

}  // namespace

std::vector<float> shorten(const std::vector<float>& vector, size_t dimensions, bool normalize) {
  std::vector<float> numbers = vector;
  if (dimensions > 0) numbers.resize(std::min(dimensions, numbers.size()));
  if (!normalize) return numbers;
  constexpr double kLeast = 1e-12;
  const double length = std::max(length_of(numbers), kLeast);
  for (float& x : numbers) x = static_cast<float>(x / length);
  return numbers;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  const double lengths = length_of(a) * length_of(b);
  return lengths > 0 ? sum / lengths : 0;
}

std::string base64(const std::vector<float>& vector) {
  static_assert(std::endian::native == std::endian::little);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto bytes = std::as_bytes(std::span(vector));
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    for (size_t i = at; i < at + 3; ++i)
      three = three << 8 | (i < bytes.size() ? std::to_integer<uint32_t>(bytes[i]) : 0u);
    const size_t have = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 4; ++i) text += i <= have ? kDigits[three >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

Json pooling_answer(const AnswerHead& head, const PoolingRequest& request,
                    const std::vector<PooledVector>& vectors, const Usage& usage) {
  Json answer = {{"id", head.id}, {"model", head.model}, {"usage", usage_json(usage)}};
  if (request.kind == Kind::kRerank) {
    answer["results"] = ranks_json(request, scores_of(request, vectors));
    return answer;
  }
  answer["object"] = "list";
  answer["created"] = head.created;
  answer["data"] = request.kind == Kind::kScore ? scores_json(scores_of(request, vectors))
                                                : vectors_json(request, vectors);
  return answer;
}

}  // namespace refrain
