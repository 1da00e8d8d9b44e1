#pragma once
// A request's body as it arrives, and what RFC 9112 asks of its framing (private to
// runtime/server). Bytes are charged to the server when they are there, never when they are
// promised. On the connection's strand; a BodyCharge may be let go of on any thread.

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace refrain {

// Like Beast's string_body, but without reserving what Content-Length promises.
struct ArrivingBody {
  using value_type = std::string;

  static uint64_t size(const value_type& body) { return body.size(); }

  class reader {  // NOLINT(readability-identifier-naming): Beast asks for the name
   public:
    template <bool IsRequest, class Fields>
    reader(boost::beast::http::header<IsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer part(*at);
        body_.append(static_cast<const char*>(part.data()), part.size());
      }
      return body_.size() - before;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// The bytes of all bodies that are here. An owner, that is a key, has at most as many as are left
// when it has them: alone half, of two that take all they can get each a third, so that none takes
// the place of all. Any thread.
class BodyBytes {
 public:
  explicit BodyBytes(size_t most) : most_(most) {}

  bool take(const std::string& owner, size_t bytes);
  void give_back(const std::string& owner, size_t bytes);

 private:
  const size_t most_;
  std::mutex mutex_;
  size_t taken_ = 0;
  std::map<std::string, size_t> of_owner_;
};

// What one body takes of them, until the last owner lets go.
class BodyCharge {
 public:
  BodyCharge(std::shared_ptr<BodyBytes> all, std::string owner)
      : all_(std::move(all)), owner_(std::move(owner)) {}
  ~BodyCharge() { all_->give_back(owner_, bytes_); }
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;

  // The body has grown to `bytes`. False: that is more than it may take.
  bool grow_to(size_t bytes) {
    const size_t more = bytes - std::min(bytes, bytes_);
    if (!all_->take(owner_, more)) return false;
    bytes_ += more;
    return true;
  }

 private:
  const std::shared_ptr<BodyBytes> all_;
  const std::string owner_;
  size_t bytes_ = 0;
};

using RequestHead = boost::beast::http::request_header<>;

// Why the header's framing is refused (400), as RFC 9112 sections 3.2 and 6.1 say; nothing: it is
// right. Beast takes a Transfer-Encoding that it does not know for none.
std::optional<std::string> framing_error(const RequestHead& head);

}  // namespace refrain
