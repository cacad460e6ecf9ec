# LibTorch as an INTERFACE target of our own, taken from the Python package (RIPPLEKV_TORCH_DIR, or .venv).
#
# Torch's headers bring other versions of protobuf and fmt than the system's. The target is linked PRIVATE by the
# few libraries that multiply with it, and its include folders come last (-idirafter), so that nothing is shadowed.
set(RIPPLEKV_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python that has torch installed")
if(NOT DEFINED RIPPLEKV_TORCH_DIR)
  execute_process(
    COMMAND ${RIPPLEKV_PYTHON} -c "import importlib.util,os;print(os.path.dirname(importlib.util.find_spec('torch').origin))"
    OUTPUT_VARIABLE RIPPLEKV_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT RIPPLEKV_TORCH_DIR)
    message(FATAL_ERROR "No torch in ${RIPPLEKV_PYTHON}: run scripts/install.sh, or set -DRIPPLEKV_TORCH_DIR=...")
  endif()
  set(RIPPLEKV_TORCH_DIR "${RIPPLEKV_TORCH_DIR}" CACHE PATH "Folder of the Python package torch")
endif()

list(APPEND CMAKE_PREFIX_PATH "${RIPPLEKV_TORCH_DIR}/share/cmake/Torch")
find_package(Torch 2.13 REQUIRED)
# One OpenMP runtime in the process: the one that LibTorch brings.
file(GLOB RIPPLEKV_GOMP "${RIPPLEKV_TORCH_DIR}/lib/libgomp*.so*")
if(NOT RIPPLEKV_GOMP)
  find_package(OpenMP REQUIRED)
  set(RIPPLEKV_GOMP OpenMP::OpenMP_CXX)
endif()

add_library(ripplekv_torch INTERFACE)
target_compile_options(ripplekv_torch INTERFACE
  "SHELL:-idirafter ${RIPPLEKV_TORCH_DIR}/include"
  "SHELL:-idirafter ${RIPPLEKV_TORCH_DIR}/include/torch/csrc/api/include" -fopenmp)
target_link_libraries(ripplekv_torch INTERFACE
  "${RIPPLEKV_TORCH_DIR}/lib/libtorch.so" "${RIPPLEKV_TORCH_DIR}/lib/libtorch_cpu.so" "${RIPPLEKV_TORCH_DIR}/lib/libc10.so"
  ${RIPPLEKV_GOMP})
