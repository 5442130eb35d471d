#!/bin/sh
# mpirun for tests: as root too, with more ranks than cores, quiet, over this host's memory alone.
# Usage: TMPDIR=DIRECTORY tests/mpi/mpirun.sh [options of mpirun] PROGRAM ARGUMENT...
#
# Runs side by side need directories of their own: as mpirun of Open MPI 4.1 ends, it removes what is
# empty up to $TMPDIR, also what another one has just made there, which then fails in session_dir.c
# (3 of 3,000 runs in two loops; none with directories of their own).
: "${TMPDIR:?the directory of this run alone}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# mpirun of Open MPI 4.1 can die of SIGPIPE as it ends a run whose ranks are gone, and then leaves its
# directory of temporary files behind (seen in one of 500 runs). minfer ignores the signal itself.
trap '' PIPE
exec mpirun --quiet --oversubscribe --bind-to none "$@"
