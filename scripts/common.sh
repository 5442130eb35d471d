# Sourced by the other scripts: packages of Debian 12 and Ubuntu 24.04 by purpose, and the build.

build_packages=(
  g++ cmake ninja-build pkg-config
  libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev
  libsentencepiece-dev libssl-dev libxxhash-dev
  libedit-dev libtomlplusplus-dev
)
model_packages=(python3-pip python3 unzip ca-certificates)  # scripts/get_model.sh
data_packages=(curl unzip ca-certificates)  # scripts/get_wikitext2.sh
test_packages=(libgtest-dev libbenchmark-dev)
mpi_packages=(libopenmpi-dev openmpi-bin iproute2)  # --tp mpi; its test across network namespaces
ci_packages=(clang-format g++-aarch64-linux-gnu)

# install_packages NAME...: installs what is missing, with sudo when not root.
install_packages() {
  local package missing=() as_root=()
  for package in "$@"; do
    if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then return; fi
  if ((EUID != 0)); then as_root=(sudo); fi
  echo "installing with apt-get: ${missing[*]}" >&2
  {
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends \
      "${missing[@]}"
  } </dev/null >&2
}

# configure_release ON|OFF: build/release with or without the tests. Warnings are errors only where
# MINFER_WERROR=ON says so: a compiler that nobody has tried yet must not stop a first build.
configure_release() {
  if [[ -f build/release/build.ninja ]]; then
    cmake -S . -B build/release -DMINFER_TESTS="$1" --log-level=WARNING
  else
    cmake --preset release -DMINFER_TESTS="$1" -DMINFER_WERROR="${MINFER_WERROR:-OFF}" \
      -DMINFER_CUDA="${MINFER_CUDA:-AUTO}" --log-level=WARNING
  fi
}
