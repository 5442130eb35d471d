#!/usr/bin/env bash
# Ranks in two network namespaces of this machine, which reach each other by TCP over a pair of
# virtual Ethernet devices, as ranks of two hosts do. Also: what happens when that link goes down.
# Usage: tests/mpi/network_namespaces.sh MINFER. Exits with 77 where it may not make namespaces.
set -euo pipefail
minfer=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"

skip() { echo "skipped: $1"; exit 77; }
command -v ip >/dev/null || skip "there is no ip (package iproute2)"

name="minfer$$"
directory=$(mktemp -d)
left() { ip netns pids "${name}b"; ip netns pids "${name}a"; } 2>/dev/null
tear_down() {
  # shellcheck disable=SC2046
  kill -KILL $(left) 2>/dev/null || true
  ip netns del "${name}a" 2>/dev/null || true  # and with it the pair of devices
  ip netns del "${name}b" 2>/dev/null || true
  rm -rf "$directory"
}
trap tear_down EXIT
ip netns add "${name}a" 2>"$directory/error" ||
  skip "no network namespace can be made here: $(head -1 "$directory/error")"
ip netns add "${name}b"
ip link add va netns "${name}a" type veth peer name vb netns "${name}b" 2>"$directory/error" ||
  skip "no pair of network devices can be made here: $(head -1 "$directory/error")"
ip -n "${name}a" addr add 10.77.0.1/24 dev va
ip -n "${name}b" addr add 10.77.0.2/24 dev vb
for side in a b; do
  ip -n "$name$side" link set lo up
  ip -n "$name$side" link set "v$side" up
done

# What mpirun calls in place of ssh: agent HOST COMMAND... The other side has a name and a directory
# for temporary files of its own, as another host does.
mkdir "$directory/a" "$directory/b"
cat >"$directory/agent" <<EOF
#!/bin/sh
shift
export TMPDIR=$directory/b
exec ip netns exec ${name}b unshare --uts sh -c "hostname other-host; \$*"
EOF
chmod +x "$directory/agent"
printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >"$directory/hosts"

# run SECONDS ARGUMENT...: minfer on four ranks, two on each side.
run() {
  local seconds=$1
  shift
  TMPDIR="$directory/a" timeout "$seconds" ip netns exec "${name}a" ./mpirun.sh \
    --mca plm_rsh_agent "$directory/agent" --hostfile "$directory/hosts" \
    --mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 1 --mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    -n 4 "$minfer" "$@" --device cpu --tp mpi </dev/null
}
greedy=(generate -m ../../models/demo -q --temp 0 -n 40 -p "The old man went to the sea")

one=$("$minfer" "${greedy[@]}" --device cpu)
four=$(run 60 "${greedy[@]}")
[[ "$four" == "$one" ]] || { printf 'one process: %s\nfour: %s\n' "$one" "$four"; exit 1; }
echo "four ranks in two namespaces write the text of one process"

# The link goes down in the middle. mpirun sees that the other side does not answer, by the keepalive
# options, and ends with its status 205; or a rank's error comes first.
run 15 bench -m ../../models/demo -p 64 -n 64 -r 10000 -q >/dev/null 2>"$directory/error" &
bench=$!
sleep 3
ip -n "${name}a" link set va down
began=$EPOCHREALTIME
status=0
wait $bench || status=$?
seconds=$(awk "BEGIN {print $EPOCHREALTIME - $began}")
grep '^minfer: error:' "$directory/error" || true
echo "without the link: status $status after $seconds s"
while [[ -n "$(left)" ]] && awk "BEGIN {exit !($EPOCHREALTIME - $began < 8)}"; do sleep 0.1; done
echo "the last process ended after $(awk "BEGIN {print $EPOCHREALTIME - $began}") s"
if [[ -n "$(left)" ]] || [[ $status != 7 && $status != 205 ]]; then
  cat "$directory/error"
  for pid in $(left); do echo "left: $(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
  exit 1
fi
