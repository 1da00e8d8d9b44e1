#pragma once
// What the formats share whose calls begin with a mark: the text before it is content, what follows
// is read byte by byte as a call. Owned by one answer, on its thread.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/answer/marker_search.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

class MarkedCallParser : public ToolCallParser {
 public:
  void push(std::string_view text, AnswerEvents& out) final;
  void finish(AnswerEvents& out) final;

 protected:
  explicit MarkedCallParser(std::vector<std::string> markers) : marker_(std::move(markers)) {}

  // A mark has come, the call's text so far: which of the markers.
  virtual void open(size_t marker, AnswerEvents& out) = 0;
  // Reads a byte of the call. False: it is not taken and comes again.
  virtual bool read(char c, AnswerEvents& out) = 0;
  // Reads from the text's beginning and takes that from it: a byte, unless a format takes more.
  virtual void read_piece(std::string_view& text, AnswerEvents& out);
  // The text ends while a call is read.
  virtual void cut(AnswerEvents& out) = 0;

  // What comes next is content, until the next mark.
  void end_reading() { reading_ = false; }
  // The same, and `taken` comes again: it may begin with the next mark.
  void read_again(const std::string& taken, AnswerEvents& out) {
    end_reading();
    push(taken, out);
  }
  // The call is content. False, as read() says it.
  bool fail(AnswerEvents& out);
  bool take(char c) {
    call_.take({&c, 1});
    return true;
  }

  OpenCall call_;

 private:
  MarkerSearch marker_;
  bool reading_ = false;
};

}  // namespace refrain::text
