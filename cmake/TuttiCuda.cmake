# The CUDA plug-in is built where nvcc is found. Without it, everything else is built as ever.

set(TUTTI_CUDA AUTO CACHE STRING "Build libtutti_cuda.so: ON, OFF, or AUTO (if nvcc is found)")
set(TUTTI_CUDA_ARCHITECTURES "80-real;90-real;100-real;100-virtual" CACHE STRING
  "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; 90-real alone builds faster")

option(TUTTI_MULTICAST "Compile NVLink multicast into include/tutti/device; Tutti itself never uses it" OFF)

# Sets TUTTI_CUDA_FOUND in the caller.
macro(tutti_find_cuda)
  set(TUTTI_CUDA_FOUND OFF)
  if(TUTTI_CUDA STREQUAL "AUTO" AND (TUTTI_SANITIZE OR TUTTI_COVERAGE))
    message(STATUS "CUDA: left out of instrumented builds")
  elseif(TUTTI_CUDA)
    include(CheckLanguage)
    set(CMAKE_CUDA_ARCHITECTURES "${TUTTI_CUDA_ARCHITECTURES}")
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      if(TUTTI_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${TUTTI_CCACHE})
      endif()
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
      enable_language(CUDA)
      find_package(CUDAToolkit REQUIRED)
      # nvcc takes a core and up to two gigabytes for each file: as many at a time as memory holds.
      cmake_host_system_information(RESULT TUTTI_MEGABYTES QUERY TOTAL_PHYSICAL_MEMORY)
      math(EXPR TUTTI_NVCC_JOBS "${TUTTI_MEGABYTES} / 2048 + 1")
      set_property(GLOBAL APPEND PROPERTY JOB_POOLS tutti_nvcc=${TUTTI_NVCC_JOBS})
      set(TUTTI_CUDA_FOUND ON)
      message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION} for ${TUTTI_CUDA_ARCHITECTURES}")
    elseif(NOT TUTTI_CUDA STREQUAL "AUTO")
      message(FATAL_ERROR "TUTTI_CUDA=${TUTTI_CUDA}, but no nvcc was found: set CMAKE_CUDA_COMPILER or CUDACXX")
    else()
      message(STATUS "CUDA: no nvcc, so no libtutti_cuda.so")
    endif()
  endif()
endmacro()

# tutti_cuda_target(name): what every target with kernels needs.
function(tutti_cuda_target name)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas>)
  if(TUTTI_MULTICAST)
    target_compile_definitions(${name} PRIVATE TUTTI_MULTICAST=1)
  endif()
  target_link_libraries(${name} PRIVATE tutti_options)
  set_target_properties(${name} PROPERTIES JOB_POOL_COMPILE tutti_nvcc CUDA_SEPARABLE_COMPILATION OFF)
endfunction()

# libtutti_cuda.so from the cuda folders of the layers, as target `name` in `folder`. The runtime is linked statically and
# hidden; the driver is found at run time.
function(tutti_cuda_module name folder)
  set(sources
    src/device/cuda/cuda_check.cc
    src/device/cuda/cuda_device.cc
    src/device/cuda/cuda_report.cc
    src/device/cuda/device_memory.cc
    src/device/cuda/driver.cc
    src/device/cuda/host_memory.cc
    src/device/cuda/leftovers.cc
    src/device/cuda/links.cc
    src/device/cuda/loaded_module.cc
    src/device/cuda/stream_capture.cc
    src/device/cuda/memory_sharing.cc
    src/device/cuda/own_memory.cc
    src/device/cuda/pool_memory.cc
    src/channel/cuda/gpu_group.cc
    src/channel/cuda/gpu_ports.cc
    src/channel/cuda/stream_engine.cc
    src/channel/cuda/symmetric_memory.cc
    src/algorithm/cuda/kernels_any.cu
    src/algorithm/cuda/kernels_any_bulk.cu
    src/algorithm/cuda/kernels_copy.cu
    src/algorithm/cuda/kernels_sum_bf16.cu
    src/algorithm/cuda/kernels_sum_f16.cu
    src/algorithm/cuda/kernels_sum_f32.cu
    src/algorithm/cuda/norm_kernels.cu
    src/algorithm/cuda/serving_kernels_bf16.cu
    src/algorithm/cuda/serving_kernels_f16.cu
    src/algorithm/cuda/serving_kernels_f32.cu
    src/communicator/cuda/call_board.cc
    src/communicator/cuda/call_log.cc
    src/communicator/cuda/code_requests.cc
    src/communicator/cuda/compiled_plans.cc
    src/communicator/cuda/copy_engine_calls.cc
    src/communicator/cuda/copy_streams.cc
    src/communicator/cuda/cuda_communicator_impl.cc
    src/communicator/cuda/cuda_memory_impl.cc
    src/communicator/cuda/cuda_serving.cc
    src/communicator/cuda/cuda_stream_work.cc
    src/communicator/cuda/device_failure.cc
    src/communicator/cuda/device_plans.cc
    src/communicator/cuda/launches.cc
    src/communicator/cuda/native_kernels.cc
    src/communicator/cuda/plan_calls.cc
    src/communicator/cuda/plugin.cc
    src/communicator/cuda/quiet_device.cc
    src/communicator/cuda/registered_calls.cc
    src/communicator/cuda/stream_order.cc)
  # The bits of the CPU's kernels: products and sums are not contracted.
  set_source_files_properties(src/algorithm/cuda/kernels_any.cu src/algorithm/cuda/kernels_any_bulk.cu PROPERTIES
    COMPILE_OPTIONS "--fmad=false")
  add_library(${name} MODULE ${sources})
  tutti_cuda_target(${name})
  target_link_libraries(${name} PRIVATE tutti CUDA::cudart_static Threads::Threads)
  target_link_options(${name} PRIVATE "LINKER:--exclude-libs,ALL" "LINKER:--no-undefined")
  set_target_properties(${name} PROPERTIES PREFIX lib OUTPUT_NAME tutti_cuda INSTALL_RPATH "$ORIGIN"
    BUILD_RPATH "$ORIGIN;$ORIGIN/.." LIBRARY_OUTPUT_DIRECTORY ${folder})
endfunction()

function(tutti_cuda_library)
  tutti_cuda_module(tutti_cuda ${CMAKE_BINARY_DIR})
  # The same with random delays at the steps of the protocols: for tests, which find it by TUTTI_PLUGIN_PATH. It takes as
  # long to compile, so only who names it gets it.
  tutti_cuda_module(tutti_cuda_delayed ${CMAKE_BINARY_DIR}/delayed)
  target_compile_definitions(tutti_cuda_delayed PRIVATE TUTTI_RANDOM_DELAYS)
  set_target_properties(tutti_cuda_delayed PROPERTIES EXCLUDE_FROM_ALL ON)
  install(TARGETS tutti_cuda LIBRARY DESTINATION tutti COMPONENT cuda)
endfunction()
