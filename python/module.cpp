// refrain._engine: the public class refrain::Engine for Python. Calls that wait let other threads
// run.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <refrain/engine.h>

namespace py = pybind11;

namespace {

using refrain::Engine;
using refrain::EngineError;
using refrain::EngineOutput;
using refrain::EngineToken;

Engine::Milliseconds milliseconds(double seconds) {
  return Engine::Milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

PYBIND11_MODULE(_engine, m) {
  static py::object engine_error = py::exception<EngineError>(m, "EngineError", PyExc_RuntimeError);
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const EngineError& error) {
      const bool invalid = error.kind() == EngineError::Kind::kInvalid;
      PyErr_SetString(invalid ? PyExc_ValueError : engine_error.ptr(), error.what());
    }
  });
  const py::call_guard<py::gil_scoped_release> others_run;
  py::class_<EngineToken::Likely>(m, "Likely")
      .def_readonly("id", &EngineToken::Likely::id)
      .def_readonly("text", &EngineToken::Likely::text)
      .def_readonly("logprob", &EngineToken::Likely::logprob);
  py::class_<EngineToken>(m, "Token")
      .def_readonly("id", &EngineToken::id)
      .def_readonly("text", &EngineToken::text)
      .def_readonly("logprob", &EngineToken::logprob)
      .def_readonly("top", &EngineToken::top)
      .def_readonly("rank", &EngineToken::rank);
  py::class_<EngineOutput>(m, "Output")
      .def_readonly("id", &EngineOutput::id)
      .def_readonly("tokens", &EngineOutput::tokens)
      .def_readonly("text", &EngineOutput::text)
      .def_readonly("finish_reason", &EngineOutput::finish_reason)
      .def_readonly("stop_reason", &EngineOutput::stop_reason)
      .def_readonly("stop_token", &EngineOutput::stop_token)
      .def_readonly("error", &EngineOutput::error)
      .def_readonly("cached_tokens", &EngineOutput::cached_tokens)
      .def_readonly("prompt", &EngineOutput::prompt);
  py::class_<Engine>(m, "Engine")
      .def(py::init<const std::vector<std::string>&>(), others_run)
      .def(
          "wait_ready",
          [](Engine& engine, double timeout) { return engine.wait_ready(milliseconds(timeout)); },
          others_run)
      .def(
          "add",
          [](Engine& engine, const std::string& request) {
            refrain::EngineRequest added = engine.add(request);
            return std::pair(added.id, std::move(added.prompt_ids));
          },
          others_run)
      .def(
          "poll", [](Engine& engine, double timeout) { return engine.poll(milliseconds(timeout)); },
          others_run)
      .def(
          "load_adapter",
          [](Engine& engine, const std::string& name, const std::string& path, double timeout) {
            return engine.load_adapter(name, path, milliseconds(timeout));
          },
          others_run)
      .def(
          "unload_adapter",
          [](Engine& engine, const std::string& name, double timeout) {
            return engine.unload_adapter(name, milliseconds(timeout));
          },
          others_run)
      .def("cancel", &Engine::cancel, others_run)
      .def("stop", &Engine::stop, others_run);
}
