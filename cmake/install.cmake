# cmake --install: the binary with its manual page and completions, and the library with its
# headers for find_package(minfer) and pkg-config.
include(CMakePackageConfigHelpers)

install(TARGETS minfer_cli)
install(TARGETS minfer EXPORT minferTargets)
install(FILES LICENSE README.md TYPE DOC)
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/minfer)
# What messages of the binary name.
install(PROGRAMS scripts/get_model.sh scripts/get_wikitext2.sh
        DESTINATION ${CMAKE_INSTALL_DATADIR}/minfer/scripts)
install(FILES scripts/common.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/minfer/scripts)

# The headers that are meant for others, with what they include.
install(DIRECTORY kernels/base/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/minfer/kernels/base
        FILES_MATCHING PATTERN "*.h")
foreach(header IN ITEMS kernels/backend kernels/bench kernels/comm/communicator kernels/comm/mpi_comm
        kernels/comm/nccl_comm kernels/comm/rank_group
        kernels/decode_plan kernels/layer kernels/operands kernels/step_profile loaders/metadata
        loaders/tensor_source models/card_memory models/chat/chat_template models/model
        models/rope models/spec models/synthetic models/tokenizer/tokenizer models/weights engine/generate engine/sampler
        engine/executor engine/sequence engine/session)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/minfer/${folder})
endforeach()

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/minfer)
configure_package_config_file(cmake/minferConfig.cmake.in ${PROJECT_BINARY_DIR}/minferConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/minferConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(EXPORT minferTargets NAMESPACE minfer:: DESTINATION ${config_dir})
install(FILES ${PROJECT_BINARY_DIR}/minferConfig.cmake
              ${PROJECT_BINARY_DIR}/minferConfigVersion.cmake
              cmake/FindNCCL.cmake cmake/FindSentencePiece.cmake DESTINATION ${config_dir})
# The prefix is known only at the install: --prefix may say another one.
file(RELATIVE_PATH up_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
if(MINFER_HAS_CUDA)
  set(cuda_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
if(MINFER_HAS_MPI)
  list(JOIN MPI_CXX_LIBRARIES " " mpi_libs)
  string(PREPEND mpi_libs " ")
endif()
if(MINFER_HAS_NCCL)
  set(nccl_libs " ${NCCL_LIBRARY}")
endif()
configure_file(cmake/minfer.pc.in ${PROJECT_BINARY_DIR}/minfer.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/minfer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Made by the binary itself, so not where it is built for another machine.
if(NOT CMAKE_CROSSCOMPILING)
  set(made ${PROJECT_BINARY_DIR}/made)
  file(MAKE_DIRECTORY ${made})
  add_custom_command(
    OUTPUT ${made}/minfer.1 ${made}/minfer.bash ${made}/_minfer ${made}/minfer.fish
    COMMAND minfer_cli man > ${made}/minfer.1
    COMMAND minfer_cli completions bash > ${made}/minfer.bash
    COMMAND minfer_cli completions zsh > ${made}/_minfer
    COMMAND minfer_cli completions fish > ${made}/minfer.fish
    DEPENDS minfer_cli VERBATIM)
  add_custom_target(minfer_docs ALL DEPENDS ${made}/minfer.1)
  install(FILES ${made}/minfer.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${made}/minfer.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME minfer)
  install(FILES ${made}/_minfer DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${made}/minfer.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
