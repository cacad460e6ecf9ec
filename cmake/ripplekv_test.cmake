# ripplekv_test(NAME source... LIBS library... [THREADED] [API] [WHOLE]): a GoogleTest program, one ctest entry a test case.
# THREADED programs start threads: they are what ThreadSanitizer runs (target threaded_tests, ctest label threaded).
# WHOLE programs are one entry: many quick cases, and libraries that take longer to load than a case. With sanitizers,
# whose programs start slowly, all are.
# API programs all include the protos' headers: these are precompiled too.
add_custom_target(threaded_tests)
set(RIPPLEKV_DEFAULT_MODEL "${CMAKE_SOURCE_DIR}/models/SmolLM2-135M-Instruct.Q4_1.gguf")
# GoogleTest's headers are most of what a small test compiles: once for all of them. A program, since the tests are:
# a library's code is compiled with other flags.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/gtest_pch.cc CONTENT "")
add_executable(gtest_pch ${CMAKE_BINARY_DIR}/gtest_pch.cc)
target_link_libraries(gtest_pch PRIVATE GTest::gtest GTest::gmock GTest::gtest_main)
target_precompile_headers(gtest_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
function(ripplekv_test_options target)
  # Tests compile quickly rather than run quickly: large tables of cases cost minutes at -O3 or with full debug info.
  # -pthread: some libraries ask for it, and all tests share one precompiled header. At -O1 GCC 12 sees overflows in
  # sums of strings where there are none (GCC bugs 105329, 105651).
  target_compile_options(${target} PRIVATE -O1 -pthread -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
    $<$<CONFIG:RelWithDebInfo>:-g1>)
  if(RIPPLEKV_SANITIZE MATCHES "undefined")
    # What is tested is checked for undefined behaviour; in the tests' own code the checks double the compiler's time.
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()
ripplekv_test_options(gtest_pch)
if(RIPPLEKV_GRPC)
  add_executable(gtest_api_pch ${CMAKE_BINARY_DIR}/gtest_pch.cc)
  target_link_libraries(gtest_api_pch PRIVATE ripplekv_proto GTest::gtest GTest::gmock GTest::gtest_main)
  target_precompile_headers(gtest_api_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h>
    <ripplekv/v1/calibration.pb.h> <ripplekv/v1/decode.pb.h>)
  ripplekv_test_options(gtest_api_pch)
endif()
function(ripplekv_test name)
  cmake_parse_arguments(ARG "THREADED;API;WHOLE" "" "LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(ARG_API)
    target_precompile_headers(${name} REUSE_FROM gtest_api_pch)
  else()
    target_precompile_headers(${name} REUSE_FROM gtest_pch)
  endif()
  ripplekv_test_options(${name})
  target_compile_definitions(${name} PRIVATE
    RIPPLEKV_DEFAULT_MODEL="${RIPPLEKV_DEFAULT_MODEL}"
    RIPPLEKV_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set(labels)
  if(ARG_THREADED)
    add_dependencies(threaded_tests ${name})
    set(labels LABELS threaded)
  endif()
  # Spinning OpenMP teams and busy neighbours slow each other down tenfold (ctest -j, compilers).
  set(properties TIMEOUT 600 ENVIRONMENT OMP_WAIT_POLICY=passive ${labels})
  if(ARG_WHOLE OR RIPPLEKV_SANITIZE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES ${properties})
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
  endif()
endfunction()
