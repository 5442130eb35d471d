#!/bin/sh
# Usage: check_isa_objects.sh NM OBJECT... Fails where an object built with AVX flags defines a weak
# or unique symbol: the linker keeps one copy of such a function for the whole program, so AVX code
# could run where there is no AVX.
nm=$1
shift
found=0
checked=0
for object in "$@"; do
  case $object in *kernels_avx*) ;; *) continue ;; esac
  checked=$((checked + 1))
  # DW.ref.* are pointers that sanitized code keeps for exceptions, not code.
  if "$nm" -C "$object" | grep -E ' [WVu] ' | grep -v ' DW\.ref\.'; then
    echo "$object: the symbols above are shared with other objects" >&2
    found=1
  fi
done
echo "$checked objects checked"
[ "$found" -eq 0 ] && [ "$checked" -gt 0 ]
