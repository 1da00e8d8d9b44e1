#pragma once
// A host device that is always behind, as an accelerator may be: launches, copies and graphs wait
// in their stream until somebody waits for an event or the stream behind them. What a step in
// flight still reads or has not yet written is then seen by a test. For one rank and one thread.

#include <memory>

#include "worker/device/device.h"

namespace refrain::tests {

std::unique_ptr<worker::Device> make_late_device(std::unique_ptr<worker::Device> host);
// The same, and it counts the captures that its streams begin.
std::unique_ptr<worker::Device> make_late_device_that_counts(std::unique_ptr<worker::Device> host,
                                                             std::shared_ptr<int> captures);

}  // namespace refrain::tests
