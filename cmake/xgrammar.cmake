# xgrammar's C++ library from its sources (tools/xgrammar), as a target of its own: one level of optimisation for what
# runs once a request is enough and halves its build; its warnings are not ours.
set(REFRAIN_XGRAMMAR ${CMAKE_SOURCE_DIR}/build/xgrammar CACHE PATH "Sources of xgrammar (tools/xgrammar)")
if(REFRAIN_PYTHON AND NOT EXISTS ${REFRAIN_XGRAMMAR}/include/xgrammar/compiler.h) # pip install . in a fresh clone
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH REFRAIN_PYTHON=${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/xgrammar)
endif()
if(NOT EXISTS ${REFRAIN_XGRAMMAR}/include/xgrammar/compiler.h)
  message(FATAL_ERROR "xgrammar's sources are not in ${REFRAIN_XGRAMMAR}: run tools/xgrammar")
endif()
file(GLOB_RECURSE _sources ${REFRAIN_XGRAMMAR}/cpp/*.cc)
list(FILTER _sources EXCLUDE REGEX "/tvm_ffi/")
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${_sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${REFRAIN_XGRAMMAR}/include ${REFRAIN_XGRAMMAR}/3rdparty/dlpack/include)
target_include_directories(xgrammar SYSTEM PRIVATE ${REFRAIN_XGRAMMAR}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_options(xgrammar PRIVATE -O1 -g0 -w ${_sanitize} ${_sanitize_others})
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD OFF)
