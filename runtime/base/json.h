#pragma once
// nlohmann::json, the parser and the writer of which are compiled once: each file that used them
// would take 3 s longer to compile. Instead of <nlohmann/json.hpp> everywhere.

#include <nlohmann/json.hpp>
#include <string>

// Of the parsers that of a std::string: each other kind of source has one of its own.
#define REFRAIN_JSON_PARTS(extern_)                                                           \
  extern_ template class nlohmann::detail::serializer<nlohmann::json>;                        \
  extern_ template class nlohmann::detail::json_sax_dom_parser<nlohmann::json>;               \
  extern_ template class nlohmann::detail::json_sax_dom_callback_parser<nlohmann::json>;      \
  extern_ template class nlohmann::detail::lexer<                                             \
      nlohmann::json, nlohmann::detail::iterator_input_adapter<std::string::const_iterator>>; \
  extern_ template class nlohmann::detail::parser<                                            \
      nlohmann::json, nlohmann::detail::iterator_input_adapter<std::string::const_iterator>>
REFRAIN_JSON_PARTS(extern);
