#!/bin/sh
# mpirun for tests: as root too, with more ranks than cores, quiet, over this host's memory alone.
# Usage: tests/mpi/mpirun.sh [options of mpirun] PROGRAM ARGUMENT...
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# mpirun of Open MPI 4.1 can die of SIGPIPE as it ends a run whose ranks are gone, and then leaves its
# directory of temporary files behind (seen in one of 500 runs). minfer ignores the signal itself.
trap '' PIPE
exec mpirun --quiet --oversubscribe --bind-to none "$@"
