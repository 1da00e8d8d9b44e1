#include "runtime/engine/stop_strings.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace refrain {
namespace {

TEST(StopStrings, TextWithoutStopsPassesAtOnce) {
  StopStrings stops({}, false);
  EXPECT_EQ(stops.push("abc").text, "abc");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopStrings, NeverShowsAPartOfAStopString) {
  StopStrings stops({"STOP"}, false);
  EXPECT_EQ(stops.push("one S").text, "one ");
  EXPECT_EQ(stops.push("TO").text, "");
  const StopStrings::Found found = stops.push("P two");
  EXPECT_EQ(found.text, "");
  EXPECT_EQ(found.stop, "STOP");
}

TEST(StopStrings, ShowsWhatTurnedOutToBeNoStopString) {
  StopStrings stops({"aab"}, false);
  EXPECT_EQ(stops.push("aa").text, "");
  EXPECT_EQ(stops.push("a").text, "a");
  EXPECT_EQ(stops.push("c").text, "aac");
  EXPECT_EQ(stops.push("xa").text, "x");
  EXPECT_EQ(stops.flush(), "a");
}

TEST(StopStrings, IncludesTheStopStringWhenAsked) {
  StopStrings stops({"\n\n"}, true);
  const StopStrings::Found found = stops.push("end\n\nmore");
  EXPECT_EQ(found.text, "end\n\n");
  EXPECT_EQ(found.stop, "\n\n");
}

TEST(StopStrings, TheMatchThatEndsFirstWinsAndOfThoseTheLongest) {
  StopStrings first({"abcd", "bc"}, false);
  EXPECT_EQ(first.push("abcd").stop, "bc");
  StopStrings longest({"c", "bc"}, false);
  EXPECT_EQ(longest.push("abc").stop, "bc");
}

// However the text is cut, the same text comes out and the same stop string is found.
TEST(StopStrings, WhatPassesEndsNoStopStringAndMayBeginOne) {
  StopStrings stops({"ab", "xabc"}, false);
  EXPECT_EQ(stops.pass("ab xab"), "ab ");
  EXPECT_EQ(stops.push("d").text, "xabd");
  EXPECT_EQ(stops.pass("xa"), "");
  const StopStrings::Found found = stops.push("bab");
  EXPECT_EQ(found.text, "x");
  EXPECT_EQ(found.stop, "ab");
}

RC_GTEST_PROP(StopStringsProperty, TheCutsDoNotMatter, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const auto text = *letters;
  const auto stops = *rc::gen::container<std::vector<std::string>>(
      *rc::gen::inRange<size_t>(1, 4), rc::gen::nonEmpty(rc::gen::resize(5, letters)));
  const bool include = *rc::gen::arbitrary<bool>();

  StopStrings cut(stops, include);
  std::string shown;
  std::optional<std::string> stop;
  for (size_t at = 0; at < text.size() && !stop;) {
    const size_t length = *rc::gen::inRange<size_t>(1, 4);
    StopStrings::Found found = cut.push(std::string_view(text).substr(at, length));
    at += length;
    shown += found.text;
    stop = found.stop;
  }
  if (!stop) shown += cut.flush();

  size_t end = std::string::npos;
  std::string best;
  for (const std::string& each : stops) {
    const size_t at = text.find(each);
    if (at == std::string::npos) continue;
    if (at + each.size() < end || (at + each.size() == end && each.size() > best.size())) {
      end = at + each.size();
      best = each;
    }
  }
  RC_ASSERT(stop.has_value() == (end != std::string::npos));
  if (!stop) {
    RC_ASSERT(shown == text);
  } else {
    RC_ASSERT(*stop == best);
    RC_ASSERT(shown == text.substr(0, include ? end : end - best.size()));
  }
}

}  // namespace
}  // namespace refrain
