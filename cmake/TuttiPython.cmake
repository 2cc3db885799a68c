# Python and what an extension module of the `tutti` package needs.
#
# The interpreter: Python_EXECUTABLE when given, else the project's virtual environment, else the system's.

if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "Python to build for")
endif()
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

# With AUTO, what needs no torch is built where Python has none. Asked from a folder without a src/torch.
if(TUTTI_BUILD_TORCH STREQUAL "AUTO")
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
    RESULT_VARIABLE TUTTI_TORCH_ABSENT)
  if(TUTTI_TORCH_ABSENT)
    message(STATUS "torch: not in ${Python_EXECUTABLE}'s environment, so no torch.distributed backend")
    set(TUTTI_BUILD_TORCH OFF)
    file(REMOVE ${CMAKE_BINARY_DIR}/python/tutti/torch_version.txt)
  endif()
endif()

# Every build folder holds an importable package: PYTHONPATH=<build>/python runs what was just built. The Python
# files are links into the source tree, so an edit needs no build.
set(TUTTI_PACKAGE_DIR ${CMAKE_BINARY_DIR}/python/tutti)
file(GLOB_RECURSE TUTTI_PYTHON_FILES RELATIVE ${PROJECT_SOURCE_DIR}/python/tutti CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/python/tutti/*.py ${PROJECT_SOURCE_DIR}/python/tutti/*.pyi)
foreach(file ${TUTTI_PYTHON_FILES})
  get_filename_component(folder ${TUTTI_PACKAGE_DIR}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/tutti/${file} ${TUTTI_PACKAGE_DIR}/${file} SYMBOLIC)
endforeach()

# What algorithms in C++ are compiled against at run time (tutti.compile_native), and programs in C.
file(MAKE_DIRECTORY ${TUTTI_PACKAGE_DIR}/include/tutti/plugin)
foreach(header plugin/abi.h plugin/algorithm.h plugin/kernel.cuh plugin/kernel_host.h tutti.h)
  get_filename_component(folder tutti/include/tutti/${header} DIRECTORY)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/tutti/${header} ${TUTTI_PACKAGE_DIR}/include/tutti/${header} SYMBOLIC)
  install(FILES ${PROJECT_SOURCE_DIR}/include/tutti/${header} DESTINATION ${folder} COMPONENT python)
endforeach()

# tutti_extension(target): places a module in the package, here and when installed, next to libtutti.
function(tutti_extension target)
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${TUTTI_PACKAGE_DIR}
    INSTALL_RPATH "$ORIGIN")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false on std::string's own "a" + b (GCC bug 105651)
  endif()
  target_link_libraries(${target} PRIVATE tutti)
  tutti_unity(${target} 6)
  install(TARGETS ${target} LIBRARY DESTINATION tutti COMPONENT python)
endfunction()
