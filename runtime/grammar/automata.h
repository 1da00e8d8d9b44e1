#pragma once
// Sources in the words that the library makes one automaton of. Of X{m,n} and of groups it makes a
// rule for each repetition, and where a rule may end, what may follow is tried out token by token:
// milliseconds a mask. The masks of an automaton are made when it is compiled. Pure functions.

#include <string>
#include <string_view>

namespace refrain {

// The schema with patterns for minLength and maxLength, for the same answers. As it is: what is no
// JSON, and lengths that the library refuses or counts anyway.
std::string with_patterns_for_lengths(const std::string& schema);

// A grammar (EBNF) whose root is the automaton of the regular expression; empty where it would have
// more states than it is worth to compile.
std::string automaton_grammar(const std::string& regex);

}  // namespace refrain
