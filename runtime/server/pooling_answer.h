#pragma once
// Shapes of the answers of models that pool, as vLLM and OpenAI have them. Pure functions.

#include <memory>
#include <string>
#include <vector>

#include "runtime/server/api_request.h"
#include "runtime/server/api_response.h"

namespace refrain {

using PooledVector = std::shared_ptr<const std::vector<float>>;

// The first `dimensions` numbers of a vector (0: all), of length 1 where they are normalized.
std::vector<float> shorten(const std::vector<float>& vector, size_t dimensions, bool normalize);
// Of two vectors of one length; 0 where one of them is 0.
double cosine(const std::vector<float>& a, const std::vector<float>& b);
// Little-endian float32.
std::string base64(const std::vector<float>& vector);

// `vectors`: one for each prompt, in order.
Json pooling_answer(const AnswerHead& head, const PoolingRequest& request,
                    const std::vector<PooledVector>& vectors, const Usage& usage);

}  // namespace refrain
