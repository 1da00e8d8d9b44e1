#pragma once
// A host device that is always behind, as an accelerator may be: launches, copies and graphs wait
// in their stream until somebody waits for an event or the stream behind them. What a step in
// flight still reads or has not yet written is then seen by a test. Several streams then run one
// launch each in turn, those of graphs too, whatever their shares. For one rank and one thread.

#include <functional>
#include <memory>
#include <string_view>

#include "worker/device/device.h"

namespace refrain::tests {

std::unique_ptr<worker::Device> make_late_device(std::unique_ptr<worker::Device> host);
// The same, and it counts the captures that its streams begin.
std::unique_ptr<worker::Device> make_late_device_that_counts(std::unique_ptr<worker::Device> host,
                                                             std::shared_ptr<int> captures);
// Calls the function with the kernel's name before a launch that is not recorded; it may throw, as
// a device does that has no memory for the kernel's code.
using BeforeLaunch = std::function<void(std::string_view name)>;
std::unique_ptr<worker::Device> make_late_device_with(std::unique_ptr<worker::Device> host,
                                                      BeforeLaunch before_launch);
// The same with other kernels, whatever records or runs them.
std::unique_ptr<worker::Device> make_late_device_with(std::unique_ptr<worker::Device> host,
                                                      const kernels::KernelTable& kernels);

}  // namespace refrain::tests
