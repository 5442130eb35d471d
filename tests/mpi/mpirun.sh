#!/bin/sh
# mpirun for tests: as root too, with more ranks than cores, quiet, over this host's memory alone.
# Usage: tests/mpi/mpirun.sh [options of mpirun] PROGRAM ARGUMENT...
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun --quiet --oversubscribe --bind-to none "$@"
