# The CUDA compiler: CMAKE_CUDA_COMPILER or CUDACXX where given, else the one that scripts/install.sh --cuda puts into
# .venv, else nvcc from PATH. A GPU is not needed to build.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  execute_process(
    COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python -c "import sysconfig;print(sysconfig.get_paths()['purelib'])"
    OUTPUT_VARIABLE RIPPLEKV_SITE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_program(RIPPLEKV_NVCC nvcc HINTS "${RIPPLEKV_SITE}/nvidia/cu13/bin" "/usr/local/cuda/bin" NO_CACHE)
  if(NOT RIPPLEKV_NVCC)
    message(FATAL_ERROR "No nvcc: run scripts/install.sh --cuda, or give -DCMAKE_CUDA_COMPILER=/path/to/nvcc")
  endif()
  set(CMAKE_CUDA_COMPILER "${RIPPLEKV_NVCC}")
endif()
set(CMAKE_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "GPUs to compile for: A100, H100 and H200, B200")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 does not know that this compiler can.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
