#!/usr/bin/env bash
# Checks that need a CUDA GPU: tests marked gpu, the race stress, memcheck, random requests, same answers. Run it after
# a change of the engine, the encoders or the kernels:
#     tools/check_gpu.sh [LOG_FOLDER [STRESS_S [NUM_REQUESTS]]]
# All checks run at the same time on one GPU, so it measures no speed: benchmarks/h200.py does. Prints a line per check
# and, where one fails, the end of its log; the exit status is the number of failed checks.
# PYTHON names the interpreter. Works without pytest's plugins.
set -u
cd "$(dirname "$0")/.."
logs=${1:-${TMPDIR:-/tmp}/seesay-gpu-checks} stress_s=${2:-60} num_requests=${3:-6000}
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$logs"

"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
  echo "$python finds no CUDA GPU: nothing was checked"
  exit 1
}

# Warnings are not errors: the machine has the versions of packages that it has.
flags=(-q -p no:cacheprovider -o filterwarnings=default)
"$python" -c 'import pytest_asyncio, pytest_timeout' 2>/dev/null ||
  flags+=(-p no:asyncio -p no:timeout -o addopts=--import-mode=importlib)
pytest=("$python" -m pytest "${flags[@]}")
# Only files that have such tests: others may import packages that are not there.
mapfile -t gpu_files < <(grep -lr 'mark\.gpu' --include='test_*.py' tests | grep -vE 'tests/(engine|benchmarks|test_differential)')

started=$SECONDS
check() { # NAME COMMAND…
  local name=$1 status=0
  shift
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  echo "$name: $([ "$status" = 0 ] && echo passed || echo "FAILED, status $status") after $((SECONDS - started)) s:" \
    "$(tail -n 1 "$logs/$name.log")"
  [ "$status" = 0 ] || { tail -n 40 "$logs/$name.log" | sed 's/^/    /'; }
  echo "$status" >"$logs/$name.status"
}

rm -f "$logs"/*.status
check race "${pytest[@]}" tests/engine/test_gpu.py -k gave_up --stress-s "$stress_s" &
check memcheck compute-sanitizer --tool memcheck --error-exitcode 7 \
  "${pytest[@]}" tests/encoders/test_graphs.py -k replaced &
check differential "${pytest[@]}" tests/test_differential.py -k cuda --requests "$num_requests" &
check engine "${pytest[@]}" tests/engine/test_gpu.py -k 'not gave_up' &
check models "${pytest[@]}" "${gpu_files[@]}" -m gpu &
check same_answers "$python" benchmarks/same_answers.py &
wait
num_failed=$(grep -Lx 0 "$logs"/*.status | wc -l)
echo "$num_failed of $(ls "$logs"/*.status | wc -l) checks failed; their logs are in $logs"
exit "$num_failed"
