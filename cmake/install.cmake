# `cmake --install`: programs, librefrain.so with its header, and the CMake package Refrain.
#   bin/refrain -> libexec/refrain/{refrain,bench,coordinator,front,worker}   lib/librefrain.so   lib/librefrain_xgrammar.so
#   include/refrain/engine.h   lib/cmake/Refrain
# The component `runtime` is what runs, `development` the rest (links too, which a wheel cannot hold).
include(CMakePackageConfigHelpers)
set(REFRAIN_LIBEXEC libexec/refrain)

# After the targets are there.
function(refrain_install)
  # They look for libraries beside themselves first, in the build folder as in an installed one, so that nothing is
  # rewritten. RPATH and not RUNPATH, which would not count for the libraries of those libraries.
  foreach(target refrain bench coordinator front worker refrain_library)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON
                          INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../../lib")
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
  install(TARGETS refrain bench coordinator front worker RUNTIME DESTINATION ${REFRAIN_LIBEXEC} COMPONENT runtime)
  install(TARGETS refrain_xgrammar LIBRARY DESTINATION lib COMPONENT runtime)
  install(TARGETS refrain_library EXPORT RefrainTargets
          LIBRARY DESTINATION lib COMPONENT runtime NAMELINK_COMPONENT development)
  install(CODE "
    file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin\")
    file(CREATE_LINK ../${REFRAIN_LIBEXEC}/refrain \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin/refrain\" SYMBOLIC)"
    COMPONENT development)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/library/refrain DESTINATION include COMPONENT development
          FILES_MATCHING PATTERN "*.h")
  install(EXPORT RefrainTargets NAMESPACE refrain:: DESTINATION lib/cmake/Refrain COMPONENT development)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/RefrainConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  file(WRITE ${CMAKE_BINARY_DIR}/RefrainConfig.cmake
       "include(\"\${CMAKE_CURRENT_LIST_DIR}/RefrainTargets.cmake\")\n")
  install(FILES ${CMAKE_BINARY_DIR}/RefrainConfig.cmake ${CMAKE_BINARY_DIR}/RefrainConfigVersion.cmake
          DESTINATION lib/cmake/Refrain COMPONENT development)
endfunction()
