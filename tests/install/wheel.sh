#!/usr/bin/env bash
# The wheel, made by one command and installed into a clean environment: a loop of Python writes the text of
# `kt generate`, and the package does what it says. usage: wheel.sh SOURCE_DIR BUILD_DIR; 77 = no Python here.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
src=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 8))' 2>/dev/null ||
    ! python3 -m pip --version >/dev/null 2>&1; then
    echo "wheel: skipped: python3 (3.8 or later) with venv and pip is not installed"
    exit 77
fi
wheel=$(python3 "$src/python/build_wheel.py" --library "$build/lib/libkt.so" --out "$work")
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install --quiet --no-index --no-deps \
    --disable-pip-version-check "$wheel"
cd "$work" # the tree is not to be found by accident
python=$work/venv/bin/python

model=$src/datasets/models/tiny-moe text='And it came to pass'
"$python" "$src/python/examples/generate.py" "$model" 24 "$text" >got
"$build/kt" generate "$model" -p "$text" -n 24 --deterministic --quiet >want
cmp got want || { diff got want; exit 1; }
driver=$build/tests/libfake_streams.so # CUDA streams without a GPU
[ ! -f "$driver" ] || export KT_CUDA_DRIVER=$driver
"$python" "$src/tests/python/check_package.py" "$model"
# Programs that import kt_kernel find ours, by a wheel of its own.
place=$(python3 "$src/python/build_wheel.py" --as-kt-kernel --out "$work")
python3 -m pip --python "$work/venv/bin/python" install --quiet --no-index --disable-pip-version-check "$place"
"$python" -c 'import kt_kernel, kt.kernel; assert kt_kernel.KTMoEWrapper is kt.kernel.KTMoEWrapper'
