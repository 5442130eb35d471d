# Sets MINFER_HAS_NCCL. AUTO: where there is CUDA and NCCL is found.
set(MINFER_HAS_NCCL OFF)
if(NOT MINFER_NCCL STREQUAL "OFF" AND MINFER_HAS_CUDA)
  find_package(NCCL QUIET)
  set(MINFER_HAS_NCCL ${NCCL_FOUND})
endif()
if(MINFER_NCCL STREQUAL "ON" AND NOT MINFER_HAS_NCCL)
  message(FATAL_ERROR "MINFER_NCCL=ON: NCCL or CUDA was not found; see docs/parallelism.md")
endif()
