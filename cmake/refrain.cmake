# Common settings, and the two functions every folder uses: refrain_library() and refrain_test().
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(tl-expected REQUIRED)

# Warnings are errors with the compilers that the gate uses: GCC 12, and clang 19 for sanitizers and fuzzers; a newer one may
# know warnings that are not ours to mend yet.
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20))
  option(REFRAIN_WERROR "Treat warnings as errors" ON)
else()
  option(REFRAIN_WERROR "Treat warnings as errors" OFF)
endif()

add_library(refrain_flags INTERFACE)
target_include_directories(refrain_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(refrain_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-sign-conversion>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations> # of what std::stable_sort is made of
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${REFRAIN_WERROR}>>:-Werror>)
# GCC looks for garbage in its memory from 128 MB on; from 512 MB on a build takes a tenth less time.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
target_link_libraries(refrain_flags INTERFACE Threads::Threads)
# Code asks for REFRAIN_ASAN and REFRAIN_TSAN, as compilers name these in ways of their own.
if(REFRAIN_SANITIZE STREQUAL "address")
  target_compile_definitions(refrain_flags INTERFACE REFRAIN_ASAN)
  # Without the checks that double the time of a build: of what those would find AddressSanitizer sees most, and the
  # fuzzers are built with all of them.
  set(_sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
      -fno-sanitize=null,alignment,vptr,object-size,nonnull-attribute,returns-nonnull-attribute)
elseif(REFRAIN_SANITIZE STREQUAL "thread")
  target_compile_definitions(refrain_flags INTERFACE REFRAIN_TSAN)
  set(_sanitize -fsanitize=thread -fno-omit-frame-pointer)
  # Two test programs count what operator new is asked for; theirs comes before the sanitizer's own.
  target_link_options(refrain_flags INTERFACE -Wl,--allow-multiple-definition)
endif()
option(REFRAIN_FUZZ "Build the libFuzzer programs of tests/fuzz (needs clang)" OFF)
if(REFRAIN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "REFRAIN_FUZZ needs clang: add -DCMAKE_CXX_COMPILER=clang++-19 in a build folder of its own")
  endif()
  set(_sanitize -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
      -fno-omit-frame-pointer)
endif()
option(REFRAIN_COVERAGE "Count executed lines with gcov (tools/coverage)" OFF)
if(REFRAIN_COVERAGE)
  set(_sanitize --coverage -fprofile-update=atomic)
endif()
if(_sanitize)
  target_compile_options(refrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${_sanitize}>)
  target_link_options(refrain_flags INTERFACE ${_sanitize})
endif()

# All presets but host-debug put several files of a target into one translation unit: half the time. So no two files
# of a target may define the same name, in unnamed namespaces neither.
if(CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 20)
  target_compile_options(refrain_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

# refrain_library(name [DEPS targets...] [PRIVATE_DEPS targets...]): every .cpp of the calling folder
# (not of its subfolders) as one static library.
function(refrain_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;PRIVATE_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC refrain_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE refrain_flags ${ARG_DEPS} ${ARG_PRIVATE_DEPS})
  endif()
endfunction()

# refrain_cold(target): of a release it is compiled at -O1, which takes a quarter less time than -O2: what runs once a process,
# not for each request or step.
function(refrain_cold target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()

# refrain_computes(target): of a sanitizer's build it is compiled at -O1, twice the time of the -O0 that all else is compiled at,
# which is less than what its loops would take longer.
function(refrain_computes target)
  if(REFRAIN_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# refrain_test(name [ONE_THREAD] [COMPUTES] LABEL label DEPS targets... [ENVIRONMENT NAME=VALUE...]): every .cpp of the calling
# folder as one GoogleTest program in build/tests, each of its tests known to ctest under the label. ONE_THREAD: nothing in it has
# a second thread, so a ThreadSanitizer build leaves it out. Tests are compiled at -O0, which takes a third less time than -O1;
# COMPUTES: its own loops would take longer than that. The time limit is for hangs: a loaded machine takes many times as long as
# an idle one, for barriers above all.
function(refrain_test name)
  cmake_parse_arguments(ARG "ONE_THREAD;COMPUTES" "LABEL;TIMEOUT" "DEPS;ENVIRONMENT" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(NOT sources OR (ARG_ONE_THREAD AND REFRAIN_SANITIZE STREQUAL "thread"))
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(REFRAIN_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 3")
  endif()
  set(lock)
  if(ARG_LABEL STREQUAL gpu) # some fill the GPU's memory
    set(lock RESOURCE_LOCK gpu)
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE refrain_flags GTest::gmock GTest::gtest_main ${ARG_DEPS})
  if(ARG_COMPUTES)
    refrain_cold(${name})
    refrain_computes(${name})
  else()
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
                        BUILD_RPATH ${CMAKE_BINARY_DIR}/lib) # what is loaded by name; RUNPATH is not a sanitizer's dlopen's
  target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} ${lock} ENVIRONMENT "REFRAIN_BUILD_DIR=${CMAKE_BINARY_DIR};${ARG_ENVIRONMENT}")
endfunction()
