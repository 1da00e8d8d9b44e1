# Helpers shared by the shell scripts of tools/: phases with their times, errors that say what to do,
# the Python environment, the Release build. Sourced, never run.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SCRIPT=$(basename "$0")
LOGS=$ROOT/build/log
VENV=$ROOT/.venv
# Scripts that call each other share one clock.
export REFRAIN_TOOLS_STARTED=${REFRAIN_TOOLS_STARTED:-$(date +%s)}

# say TEXT...: one line with the seconds since the first script began.
say() { printf '[%4ds] %s\n' $(($(date +%s) - REFRAIN_TOOLS_STARTED)) "$*"; }

# die WHAT REMEDY: both sentences on stderr, exit 1.
die() {
  printf '\n%s: %s\n' "$SCRIPT" "$1" >&2
  if [ -n "${2:-}" ]; then printf '  What to do: %s\n' "$2" >&2; fi
  exit 1
}

# logged NAME REMEDY COMMAND...: runs it quietly with its output in build/log/NAME.log; when it fails,
# shows the end of that log and the remedy.
logged() {
  local name=$1 remedy=$2 begin=$SECONDS
  shift 2
  mkdir -p "$LOGS"
  if "$@" >"$LOGS/$name.log" 2>&1; then
    say "  $name: done in $((SECONDS - begin)) s"
  else
    echo >&2
    tail -n 40 "$LOGS/$name.log" >&2
    die "$name failed (the whole output: build/log/$name.log)" "$remedy"
  fi
}

# retry TIMES COMMAND...: for what goes over a network.
retry() {
  local times=$1 i
  shift
  for ((i = 1; i <= times; i++)); do
    if "$@"; then return 0; fi
    if ((i < times)); then sleep $((i * 2)); fi
  done
  return 1
}

# have COMMAND: is it on PATH?
have() { command -v "$1" >/dev/null 2>&1; }

# unavailable WHAT WHY: exit 75, for what cannot be had on this machine.
unavailable() {
  echo "no $1: $2" >&2
  exit 75
}

# find_python: prints a Python 3.11 to 3.13 that can make a virtual environment.
find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if have "$candidate" && "$candidate" -c \
      'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
      2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# digest_of FILES...: one digest over their contents.
digest_of() { cat "$@" | sha256sum | cut -d' ' -f1; }

# ensure_venv REQUIREMENTS...: makes or completes .venv. A stamp with the files' digest is written last,
# so an interrupted installation is done again.
ensure_venv() {
  local python stamp args=() file
  python=$(find_python) || die "no Python 3.11 to 3.13 with the venv module was found" \
    "run tools/install, or install the packages python3 and python3-venv"
  stamp=$("$python" -c 'import sys; print(sys.version.split()[0])')-$(digest_of "$@")
  if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c '' 2>/dev/null &&
    grep -qxF "$stamp" "$VENV/refrain.stamps" 2>/dev/null; then
    return 0
  fi
  say "Python packages (.venv)"
  if ! "$VENV/bin/python" -c '' 2>/dev/null; then rm -rf "$VENV"; fi
  [ -d "$VENV" ] || logged venv "look at the log" "$python" -m venv "$VENV"
  for file in "$@"; do args+=(-r "$file"); done
  logged pip "check the network connection, then run the same command again" \
    retry 3 "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input \
    --require-hashes "${args[@]}"
  echo "$stamp" >>"$VENV/refrain.stamps"
}

# build_jobs: as many as cores, fewer where memory is short (a heavy translation unit takes 1 GB).
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)
  if ((memory < 1)); then memory=1; fi
  echo $((cores < memory ? cores : memory))
}

# configure_and_build FOLDER PRESET TARGETS(or "all") [-DOPTION...]
configure_and_build() {
  local folder=$1 preset=$2 targets=$3 begin=$SECONDS
  shift 3
  (cd "$ROOT" && logged "configure-$preset" \
    "run tools/install to get what is missing, then the same command again; rm -rf ${folder#"$ROOT"/}/CMake* starts afresh" \
    cmake --preset "$preset" -B "$folder" "$@")
  if [ "$targets" = all ]; then targets=; fi
  mkdir -p "$LOGS"
  # shellcheck disable=SC2086  # a list of targets
  if ! ninja -C "$folder" -j "$(build_jobs)" $targets 2>&1 | show_progress "$LOGS/build-$preset.log"; then
    grep -E -A25 'FAILED:|error:' "$LOGS/build-$preset.log" | sed -n 1,60p >&2 || true # not head: it closes the pipe
    die "the build failed (the whole output: build/log/build-$preset.log)" \
      "mend the error above; then the same command goes on where it stopped"
  fi
  say "  build-$preset: done in $((SECONDS - begin)) s"
}

# write_compile_result NAME FAILED(0|1) SECONDS MESSAGE: build/test-results/compile-NAME.xml, one test.
write_compile_result() {
  local failure=
  if [ "$2" = 1 ]; then failure="<failure message=\"$4\"/>"; fi
  mkdir -p "$ROOT/build/test-results"
  printf '<testsuite name="compile-%s" tests="1" failures="%d">\n<testcase classname="%s" name="compiles" time="%d">%s</testcase>\n</testsuite>\n' \
    "$1" "$2" "$1" "$3" "$failure" >"$ROOT/build/test-results/compile-$1.xml"
}

# show_progress LOG: keeps everything in LOG; of ninja's [n/m] lines it shows one every ten seconds.
show_progress() {
  local log=$1 line last=$SECONDS
  : >"$log"
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ $line =~ ^\[([0-9]+/[0-9]+)\] ]] && ((SECONDS - last >= 10)); then
      say "  building ${BASH_REMATCH[1]}"
      last=$SECONDS
    fi
  done
}

# cuda_options ASKED(auto|on|off): sets CUDA_OPTIONS, what cmake is told about the CUDA device. Fetches FlashInfer's
# headers, and NCCL where there is none, where the device is built.
cuda_options() {
  local nvcc major flashinfer other
  nvcc=$(nvcc_path || true)
  CUDA_OPTIONS=(-DREFRAIN_CUDA=OFF)
  if [ "$1" = off ]; then return 0; fi
  if [ "$1" = auto ]; then
    if [ -z "$nvcc" ] || [ "$(visible_gpus)" -eq 0 ]; then return 0; fi
    other=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader | grep -v -m 1 ', 9\.0$' || true)
    if [ -n "$other" ]; then
      say "  CUDA is left out: its kernels are for GPUs of compute capability 9.0 (H100, H200), and here is $other"
      return 0
    fi
  fi
  [ -n "$nvcc" ] || die "--cuda needs nvcc, which was not found" "install a CUDA toolkit, 13.0 or later, and put nvcc on PATH"
  major=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  if [ "${major:-0}" -lt 13 ]; then
    if [ "$1" = auto ]; then
      say "  CUDA is left out: $nvcc is of release ${major:-unknown}, 13 is needed"
      return 0
    fi
    die "--cuda needs CUDA 13 or later; $nvcc is of release ${major:-unknown}" "install a newer toolkit, or leave --cuda out"
  fi
  flashinfer=$("$ROOT/tools/flashinfer") ||
    die "the CUDA device needs FlashInfer's headers" "check the network connection, or build without CUDA: --no-cuda"
  "$ROOT/tools/nccl" "$(dirname "$(dirname "$nvcc")")" ||
    die "the CUDA device needs NCCL's header" "install NCCL's development package, or build without CUDA: --no-cuda"
  CUDA_OPTIONS=(-DREFRAIN_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "-DREFRAIN_FLASHINFER=$flashinfer")
}

# visible_gpus: prints how many GPUs a CUDA program would see.
visible_gpus() {
  local count=0 chosen
  if have nvidia-smi; then count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true); fi
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    chosen=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '[^ ]' || true)
    if ((chosen < count)); then count=$chosen; fi
  fi
  echo "$count"
}

# nvcc_path: prints where nvcc is, on PATH or in the usual place.
nvcc_path() {
  if have nvcc; then command -v nvcc; return; fi
  [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc
}
