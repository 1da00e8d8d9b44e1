// Many streams at once from one thread, as little work a byte as can be: epoll, counts of events,
// the gaps between one stream's writes. Says "open" when every stream has begun, measures from then
// on for --seconds, hangs up and prints JSON.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

struct Stream {
  int socket = -1;
  bool begun = false;
  uint64_t events = 0;  // that begin with "data: "
  std::string tail;     // of the last read, for a mark cut in two
  SteadyTime last{};
};

[[noreturn]] void stop(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::string request(const std::string& path, int number, int tokens) {
  std::string ids;
  for (int i = 0; i < 8; ++i) ids += std::to_string(1 + (number * 7 + i * 13) % 400) + ",";
  ids.pop_back();
  const bool chat = path.find("chat") != std::string::npos;
  std::string body =
      "{\"max_tokens\":" + std::to_string(tokens) +
      ",\"ignore_eos\":true,\"temperature\":0,\"stream\":true," +
      (chat ? R"("messages":[{"role":"user","content":"hello"}]})" : "\"prompt\":[" + ids + "]}");
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

int connect_to(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    stop("connect");
  return socket;
}

double share(std::vector<double>& values, double at) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(at * static_cast<double>(values.size())))];
}

}  // namespace

int main(int argc, char** argv) {
  int port = 0, streams = 256, tokens = 4000;
  double seconds = 5;
  std::string path = "/v1/completions";
  CLI::App app("Streams at once, counted.", "stream_load");
  app.add_option("--port", port)->required();
  app.add_option("--streams", streams)->check(CLI::Range(1, 20000));
  app.add_option("--tokens", tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--seconds", seconds)->check(CLI::Range(0.1, 3600.0));
  app.add_option("--path", path);
  CLI11_PARSE(app, argc, argv);

  const int poll = ::epoll_create1(0);
  std::vector<Stream> all(static_cast<size_t>(streams));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].socket = connect_to(port);
    const std::string bytes = request(path, static_cast<int>(i), tokens);
    if (::send(all[i].socket, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      stop("send");
    epoll_event event{EPOLLIN, {.u64 = i}};
    if (::epoll_ctl(poll, EPOLL_CTL_ADD, all[i].socket, &event) != 0) stop("epoll_ctl");
  }
  size_t begun = 0;
  uint64_t reads = 0, bytes = 0;
  std::vector<double> gaps;  // milliseconds
  SteadyTime from{}, until = SteadyTime::max();
  std::vector<epoll_event> ready(512);
  std::vector<char> buffer(1 << 16);
  while (std::chrono::steady_clock::now() < until) {
    const int count = ::epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), 1000);
    for (int k = 0; k < count; ++k) {
      Stream& stream = all[ready[static_cast<size_t>(k)].data.u64];
      const ssize_t got = ::recv(stream.socket, buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        std::fprintf(stderr, "stream_load: a stream ended early\n");
        return 1;
      }
      const SteadyTime now = std::chrono::steady_clock::now();
      const std::string text = stream.tail + std::string(buffer.data(), static_cast<size_t>(got));
      size_t end = 0;
      uint64_t events = 0;
      for (size_t at = 0; (at = text.find("data: ", at)) != std::string::npos; end = at += 6)
        ++events;
      stream.tail = text.substr(std::max(end, text.size() - std::min<size_t>(5, text.size())));
      if (events > 0 && !stream.begun) {
        stream.begun = true;
        if (++begun == all.size()) {
          std::printf("open\n");
          std::fflush(stdout);
          from = now;
          until = now + std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::duration<double>(seconds));
        }
      }
      if (from == SteadyTime{}) continue;
      ++reads;
      bytes += static_cast<uint64_t>(got);
      stream.events += events;
      if (stream.last != SteadyTime{})
        gaps.push_back(std::chrono::duration<double, std::milli>(now - stream.last).count());
      stream.last = now;
    }
  }
  uint64_t events = 0, fewest = UINT64_MAX;
  for (const Stream& stream : all) {
    events += stream.events;
    fewest = std::min(fewest, stream.events);
    ::close(stream.socket);
  }
  std::printf(
      "{\"seconds\": %.3f, \"events\": %llu, \"fewest\": %llu, \"reads\": %llu, \"bytes\": %llu, "
      "\"gap_p50_ms\": %.3f, \"gap_p99_ms\": %.3f}\n",
      seconds, static_cast<unsigned long long>(events), static_cast<unsigned long long>(fewest),
      static_cast<unsigned long long>(reads), static_cast<unsigned long long>(bytes),
      share(gaps, 0.5), share(gaps, 0.99));
  return 0;
}
