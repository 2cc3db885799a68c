# The few CMake functions that every folder uses.

add_library(tutti_options INTERFACE)
target_include_directories(tutti_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(tutti_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor>")
# Nobody puts functions of his own in the place of a library's: calls within it are direct, and may be inlined.
target_compile_options(tutti_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>)
if(TUTTI_SANITIZE)
  target_compile_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE})
  # The kernels and their tests must agree on which instruction sets there are (kernels_targets.h).
  target_compile_definitions(tutti_options INTERFACE TUTTI_ONE_TARGET)
endif()
if(TUTTI_COVERAGE)
  target_compile_options(tutti_options INTERFACE --coverage)
  target_link_options(tutti_options INTERFACE --coverage)
endif()
# tutti_unity(target files): its C++ files so many at a time, if TUTTI_UNITY is on. Most of a file's compile time is in the
# headers that all of them include.
function(tutti_unity target files)
  if(TUTTI_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  endif()
endfunction()

set(TUTTI_LAYERS "" CACHE INTERNAL "object libraries that make up libtutti")
set(TUTTI_LINKS "" CACHE INTERNAL "what they link")

# tutti_layer(base SOURCES a.cc b.cc LINK OpenSSL::Crypto): one folder of src/ as an object library of libtutti.
function(tutti_layer name)
  cmake_parse_arguments(LAYER "" "" "SOURCES;LINK" ${ARGN})
  if(NOT LAYER_SOURCES)
    return()
  endif()
  add_library(tutti_${name} OBJECT ${LAYER_SOURCES})
  tutti_unity(tutti_${name} 6)
  target_link_libraries(tutti_${name} PUBLIC tutti_options PRIVATE ${LAYER_LINK})
  set(TUTTI_LAYERS "${TUTTI_LAYERS};tutti_${name}" CACHE INTERNAL "")
  set(TUTTI_LINKS "${TUTTI_LINKS};${LAYER_LINK}" CACHE INTERNAL "")
endfunction()

# tutti_of_layers(name): a shared library of all layers.
function(tutti_of_layers name)
  add_library(${name} SHARED)
  target_link_libraries(${name} PRIVATE ${TUTTI_LAYERS} ${TUTTI_LINKS} Threads::Threads ${CMAKE_DL_LIBS})
  target_link_libraries(${name} PUBLIC tutti_options)
  target_link_options(${name} PRIVATE "LINKER:-Bsymbolic-functions")
endfunction()

# libtutti.so. Beside the Python modules it is found through their $ORIGIN, so a package that holds
# all of them needs no library path.
function(tutti_library)
  tutti_of_layers(tutti)
  set_target_properties(tutti PROPERTIES SOVERSION 0 INSTALL_RPATH "$ORIGIN")
  install(TARGETS tutti LIBRARY DESTINATION tutti COMPONENT python NAMELINK_SKIP)
  if(TUTTI_BUNDLE)
    target_link_options(tutti PRIVATE -Wl,--exclude-libs,libcrypto.a)  # its names are not ours to offer
    # Debian has Highway as a shared library only. libtutti finds it by its own $ORIGIN; the licences go with it.
    install(FILES $<TARGET_FILE:hwy::hwy> DESTINATION tutti COMPONENT python RENAME $<TARGET_SONAME_FILE_NAME:hwy::hwy>)
    install(FILES /usr/share/doc/libhwy-dev/copyright DESTINATION tutti/licences COMPONENT python RENAME libhwy.txt)
    install(FILES /usr/share/doc/libssl-dev/copyright DESTINATION tutti/licences COMPONENT python RENAME libcrypto.txt)
  endif()
endfunction()

# tutti_test_code(target): how the tests' own code is compiled. Little time is spent in it: optimised further it takes the
# compiler half as long again. What most of it includes is read once (tests/cpp/support/precompiled.h).
# Under sanitizers it is barely optimised as it is, and its own undefined behaviour is not looked for: that takes the compiler
# as long again. But it is asked of kernels, whose bodies are compiled with their tests (TUTTI_TEST_KERNELS).
if(TUTTI_SANITIZE)
  set(TUTTI_TEST_OPTIONS -fno-sanitize=undefined)
else()
  set(TUTTI_TEST_OPTIONS -O1)
endif()
function(tutti_test_code target)
  if(TUTTI_SANITIZE AND TUTTI_TEST_KERNELS)
    return()
  endif()
  target_compile_options(${target} PRIVATE ${TUTTI_TEST_OPTIONS})
  if(NOT TARGET tutti_test_headers)
    add_executable(tutti_test_headers EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/cpp/support/precompiled.cc)
    target_link_libraries(tutti_test_headers PRIVATE tutti_options GTest::gtest Threads::Threads)
    target_compile_options(tutti_test_headers PRIVATE ${TUTTI_TEST_OPTIONS} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    target_precompile_headers(tutti_test_headers PRIVATE ${PROJECT_SOURCE_DIR}/tests/cpp/support/precompiled.h)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")  # libraries are compiled for any address, so another header would be theirs
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    target_precompile_headers(${target} REUSE_FROM tutti_test_headers)
  endif()
endfunction()

# tutti_asks_for_lost_wakeups(program): each of its GoogleTests fails that loses a wake-up.
function(tutti_asks_for_lost_wakeups program)
  if(NOT TARGET tutti_test_wakeups)
    add_library(tutti_test_wakeups OBJECT ${PROJECT_SOURCE_DIR}/tests/cpp/support/lost_wakeups.cc)
    target_link_libraries(tutti_test_wakeups PRIVATE tutti_options GTest::gtest)
    target_include_directories(tutti_test_wakeups PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests/cpp)
  endif()
  target_sources(${program} PRIVATE $<TARGET_OBJECTS:tutti_test_wakeups>)
endfunction()

# tutti_test(name SOURCES a_test.cc LINK ...): a GoogleTest program, each test known to ctest, with a watchdog. Where
# neither the tests nor what they call have a second thread (ONE_THREAD), the thread sanitizer has nothing to see.
# LIBRARY: what to link in place of tutti; the tests' names then begin with the program's.
function(tutti_test name)
  cmake_parse_arguments(TEST "ONE_THREAD" "TIMEOUT;LIBRARY" "SOURCES;LINK" ${ARGN})
  if(TEST_ONE_THREAD AND TUTTI_SANITIZE STREQUAL "thread")
    return()
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  if(TUTTI_SANITIZE)
    math(EXPR TEST_TIMEOUT "3 * ${TEST_TIMEOUT}")
  endif()
  set(prefix "")
  if(TEST_LIBRARY)
    set(prefix ${name}.)
  else()
    set(TEST_LIBRARY tutti)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  tutti_asks_for_lost_wakeups(${name})
  target_link_libraries(${name} PRIVATE ${TEST_LIBRARY} GTest::gtest GTest::gtest_main Threads::Threads ${TEST_LINK})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/cpp)
  tutti_unity(${name} 5)
  tutti_test_code(${name})
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${prefix}" PROPERTIES TIMEOUT ${TEST_TIMEOUT})
endfunction()
