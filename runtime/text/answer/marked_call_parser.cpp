#include "runtime/text/answer/marked_call_parser.h"

namespace refrain::text {

void MarkedCallParser::push(std::string_view text, AnswerEvents& out) {
  while (!text.empty()) {
    if (reading_) {
      read_piece(text, out);
      continue;
    }
    std::string before;
    const auto found = marker_.next(text, before);
    out.content(before);
    if (!found) return;
    call_.start(marker_.marker(*found));
    reading_ = true;
    open(*found, out);
  }
}

void MarkedCallParser::finish(AnswerEvents& out) {
  if (reading_) {
    cut(out);
  } else {
    out.content(marker_.flush());
  }
}

void MarkedCallParser::read_piece(std::string_view& text, AnswerEvents& out) {
  if (read(text.front(), out)) text.remove_prefix(1);
}

bool MarkedCallParser::fail(AnswerEvents& out) {
  call_.fail(out);
  end_reading();
  return false;
}

}  // namespace refrain::text
