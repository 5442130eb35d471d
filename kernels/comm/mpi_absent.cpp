#include "kernels/comm/mpi_comm.h"

// In place of mpi_comm.cpp in a build without MPI.
namespace minfer {

std::unique_ptr<MpiProcess> start_mpi(const MpiOptions&) {
  throw Error(ErrorKind::Usage,
              "--tp mpi: this build has no MPI (Open MPI and -DMINFER_MPI=ON add it)");
}

}  // namespace minfer
