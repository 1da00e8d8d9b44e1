# CUDA in this build: the compiler's flags and refrain_cuda_library(). Included where REFRAIN_CUDA is
# on. Only folders named cuda/ use it.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
endif()
# Architectures are given to nvcc by hand: this CMake knows neither C++20 for CUDA 13 nor 90a.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

set(REFRAIN_FLASHINFER "${CMAKE_SOURCE_DIR}/build/flashinfer" CACHE PATH
    "Folder with FlashInfer's headers and those they need (tools/flashinfer)")
if(NOT EXISTS "${REFRAIN_FLASHINFER}/include/flashinfer/attention/hopper/prefill_sm90.cuh")
  message(FATAL_ERROR "FlashInfer's headers, which the CUDA device needs, are not in "
          "${REFRAIN_FLASHINFER}\n  What to do: tools/install --cuda fetches them")
endif()

set(REFRAIN_NCCL "${CMAKE_SOURCE_DIR}/build/nccl" CACHE PATH
    "Folder with include/nccl.h, where the compiler finds none (tools/nccl)")
find_path(REFRAIN_NCCL_INCLUDE nccl.h HINTS "${REFRAIN_NCCL}/include" ${CUDAToolkit_INCLUDE_DIRS})
if(NOT REFRAIN_NCCL_INCLUDE)
  message(FATAL_ERROR "NCCL's header nccl.h, which the CUDA device needs, was not found\n"
          "  What to do: tools/nccl fetches it; or install NCCL's development package")
endif()

set(REFRAIN_CUDA_FLAGS -std=c++20 -O3 --expt-relaxed-constexpr -diag-error=20012
    "SHELL:-Xcompiler -Wall,-Wextra,-fPIC")
option(REFRAIN_PDL_TORTURE "Kernels sleep after each wait for the one before and each early start of the next" OFF)
if(REFRAIN_PDL_TORTURE)
  list(APPEND REFRAIN_CUDA_FLAGS -DREFRAIN_PDL_TORTURE)
endif()
foreach(arch ${REFRAIN_CUDA_ARCHITECTURES})
  list(APPEND REFRAIN_CUDA_FLAGS "SHELL:-gencode=arch=compute_${arch},code=sm_${arch}")
endforeach()

# refrain_cuda_library(name [DEPS targets...] [PRIVATE_DEPS targets...]): every .cu and .cpp of the
# calling folder as one static library.
function(refrain_cuda_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;PRIVATE_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp
       ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  add_library(${name} STATIC ${sources})
  set_target_properties(${name} PROPERTIES CUDA_STANDARD_REQUIRED OFF CUDA_EXTENSIONS OFF
                        CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${REFRAIN_CUDA_FLAGS}>)
  target_link_libraries(${name} PUBLIC refrain_flags CUDA::cudart_static ${ARG_DEPS}
                        PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()
