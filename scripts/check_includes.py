#!/usr/bin/env python3
"""Fails where a source file includes a folder that its own may not see, or a package that has its
place elsewhere. Run from the root."""
import pathlib
import re
import sys

MAY_SEE = {
    "kernels/base": {"kernels/base"},
    "kernels": {"kernels/base", "kernels"},
    "loaders": {"kernels/base", "loaders"},
    "models": {"kernels/base", "kernels", "loaders", "models"},
    "engine": {"kernels/base", "kernels", "models", "engine"},
    "tools": {"kernels/base", "kernels", "loaders", "models", "engine", "tools"},
}
KERNELS_SEEN = {  # of kernels/ outside kernels/base
    "models": {"kernels/backend.h", "kernels/comm/rank_group.h", "kernels/layer.h"},
    "engine": {"kernels/backend.h", "kernels/comm/rank_group.h", "kernels/decode_plan.h",
               "kernels/layer.h", "kernels/moe.h"},
    "tools": {"kernels/backend.h", "kernels/bench.h", "kernels/comm/all_reduce_cost.h",
              "kernels/comm/mpi_comm.h", "kernels/comm/nccl_comm.h", "kernels/comm/rank_group.h",
              "kernels/step_profile.h"},
}
PACKAGES_OF_TOOLS = ("CLI/", "spdlog/")


# Rooms of kernels/: what stands in one may include its own, the floor, and what lies in kernels/
# itself, which includes none of them.
ROOMS = ("kernels/cpu/", "kernels/cuda/")
# Rooms of kernels/cuda/, each with those that it may include besides its own.
CUDA_ROOMS = {
    "attention": set(),
    "comm": set(),
    "elementwise": set(),
    "sampling": set(),
    "gemm": {"attention", "elementwise"},
    "quant": {"elementwise"},
    "gemv": {"elementwise", "quant"},
    "moe": {"elementwise", "gemm", "gemv", "quant"},
    "decode": {"attention", "elementwise", "gemv", "moe", "quant", "sampling"},
    "bench": {"gemm", "gemv", "sampling"},
}


def layer(path):
    return "kernels/base" if path.startswith("kernels/base/") else path.split("/")[0]


def cuda_room(path):
    parts = path.split("/")
    return parts[2] if parts[:2] == ["kernels", "cuda"] and len(parts) > 3 else None


def crosses_rooms(path, target):
    for room in ROOMS:
        if target.startswith(room) and not path.startswith(room):
            return True
    own, other = cuda_room(path), cuda_room(target)
    return own is not None and other not in (None, own) and other not in CUDA_ROOMS[own]


def fault(file, own, quoted, target):
    """What is wrong with one include, or None."""
    if not quoted:
        if target.startswith(PACKAGES_OF_TOOLS) and own != "tools":
            return f"{target} belongs to tools/"
        if target == "nlohmann/json.hpp" and file.suffix == ".h":
            return f"{target} belongs into .cpp files"
        return None
    if layer(file.as_posix()) == "kernels" and crosses_rooms(file.as_posix(), target):
        return f"{own} may not include {target} here"
    private = layer(target) == "kernels" and target not in KERNELS_SEEN.get(own, {target})
    if layer(target) not in MAY_SEE[own] or private:
        return f"{own} may not include {target}"
    return None


bad = 0
for folder in sorted({own.split("/")[0] for own in MAY_SEE}):
    for file in sorted(pathlib.Path(folder).rglob("*")):
        if file.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        own = layer(file.as_posix())
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            message = found and fault(file, own, found.group(1) == '"', found.group(2))
            if message:
                print(f"{file}:{number}: {message}")
                bad += 1
sys.exit(bad > 0)
