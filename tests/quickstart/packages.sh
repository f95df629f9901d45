#!/usr/bin/env bash
# What quickstart does about packages, with stand-ins for apt-get, dpkg-query, id and sudo on a PATH of its own:
# packages.sh QUICKSTART. SPDX-License-Identifier: Apache-2.0
set -uo pipefail
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
tests=0
failures=0

# A folder with a copy of quickstart, programs that only say they were called, and nothing else on PATH.
mkdir -p "$work/tree/tests" "$work/tree/build/release" "$work/bin"
cp "$1" "$work/tree/quickstart"
for tool in bash env dirname basename mv cut grep tail head cat rm sed find mktemp mkdir cp ln; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done

# program FILE LINE...: an executable script.
program() {
    local file=$1
    shift
    {
        echo "#!$work/bin/bash"
        printf '%s\n' "$@"
    } >"$file"
    chmod +x "$file"
}
program "$work/tree/tests/run" 'echo tests were run'
program "$work/bin/cmake" 'exit 0'
program "$work/bin/clang" 'echo "$CLANG_VERSION"'
program "$work/bin/id" 'echo "$FAKE_UID"'
# Packages: $STATE/known are those of the release, $STATE/installed those that are there.
program "$work/bin/dpkg-query" 'while [ $# -gt 1 ]; do shift; done' \
    'grep -qx "$1" "$STATE/installed" && echo -n installed && exit 0' \
    'echo "dpkg-query: no packages found matching $1" >&2; exit 1'
program "$work/bin/apt-get" 'echo "$*" >>"$STATE/calls"' '[ "$1" = install ] || exit 0' 'shift' 'bad=0' \
    'for name in "$@"; do case $name in -*) ;;' \
    '*) grep -qx "$name" "$STATE/known" || { echo "E: Unable to locate package $name" >&2; bad=100; } ;; esac; done' \
    '[ $bad = 0 ] || exit $bad' \
    'for name in "$@"; do case $name in -*) ;; *) echo "$name" >>"$STATE/installed" ;; esac; done'

build_packages="gcc g++ cmake ninja-build pkg-config libhwloc-dev libevent-dev libpcre2-dev libutf8proc-dev zlib1g-dev ca-certificates curl"
libraries="libxsmm-dev libdnnl-dev libblis-dev libcriterion-dev"
test_packages="clang binutils lld sqlite3 chromium ccache python3 python3-venv libclang-rt-14-dev libclang-rt-19-dev"

# start KNOWN [INSTALLED]: a machine whose release has the first, with the second already there.
start() {
    export STATE=$work/state FAKE_UID=0 CLANG_VERSION=14.0.6
    rm -rf "$STATE"
    mkdir "$STATE"
    : >"$STATE/calls"
    # shellcheck disable=SC2086
    printf '%s\n' $1 >"$STATE/known"
    # shellcheck disable=SC2086
    printf '%s\n' ${2:-} >"$STATE/installed"
}

# without NAME WORDS...: the words but one.
without() {
    local name out='' gone=$1
    shift
    for name in "$@"; do [ "$name" = "$gone" ] || out+="$name "; done
    echo "$out"
}

# run MODE WANTED_STATUS: quickstart on that machine; what it said is in $said.
run() {
    said=$(cd "$work/tree" && PATH=$work/bin ./quickstart "$1" 2>&1)
    local status=$?
    says "status $2, not $status" [ "$status" = "$2" ]
}

# says WHAT COMMAND...: one check; the command must succeed.
says() {
    local what=$1
    shift
    tests=$((tests + 1))
    "$@" && return
    failures=$((failures + 1))
    printf '%s: %s; quickstart said:\n%s\n' "$case" "$what" "$said"
}
told() { says "does not say '$1'" grep -qF -- "$1" <<<"$said"; }
silent() { says "says '$1'" [ -z "$(grep -F -- "$1" <<<"$said")" ]; }
installed() { says "$1 is not installed" grep -qx "$1" "$STATE/installed"; }

all="$build_packages $libraries $test_packages"

case='everything is known'
start "$all"
run build 0
silent 'cannot be installed'
silent 'going on without'
says 'does not install in one call' [ "$(grep -c '^install' "$STATE/calls")" = 1 ]
run test 0
told 'tests were run'

case='everything is there'
start "" "$all"
run build 0
says 'calls apt-get' [ ! -s "$STATE/calls" ]

case='an optional package is unknown'
# shellcheck disable=SC2086
start "$(without libdnnl-dev $all)"
run test 0
told 'libdnnl-dev cannot be installed: E: Unable to locate package libdnnl-dev'
told 'going on without optional packages: libdnnl-dev'
told 'tests were run'
for name in gcc libxsmm-dev libcriterion-dev chromium; do installed $name; done

case='a required package is unknown'
# shellcheck disable=SC2086
start "$(without libutf8proc-dev $all)"
run build 1
told 'libutf8proc-dev cannot be installed: E: Unable to locate package libutf8proc-dev'
told 'required packages are missing: libutf8proc-dev;'
silent 'built build/release'

case='Criterion is unknown'
# shellcheck disable=SC2086
start "$(without libcriterion-dev $all)"
run build 0
told 'going on without optional packages: libcriterion-dev'
run test 1
told 'required packages are missing: libcriterion-dev;'
silent 'tests were run'

case='the library of clang 19'
# shellcheck disable=SC2086
start "$(without libclang-rt-14-dev $all)"
CLANG_VERSION=19.1.7
run test 0
installed libclang-rt-19-dev
silent 'going on without'

case='neither root nor sudo'
start "$all" "gcc g++"
FAKE_UID=1000
run build 1
told 'not root and no sudo'
told 'required packages are missing: cmake ninja-build'
says 'calls apt-get' [ ! -s "$STATE/calls" ]
start "$all" "$build_packages"
FAKE_UID=1000
run build 0
told "going on without optional packages: $libraries"

case='sudo'
start "$all"
FAKE_UID=1000
program "$work/bin/sudo" 'echo sudo >>"$STATE/calls"' 'exec "$@"'
run build 0
says 'does not ask sudo' grep -qx sudo "$STATE/calls"
installed libblis-dev
rm "$work/bin/sudo"

case='no Debian'
start "$all"
rm "$work/bin/dpkg-query"
run build 1
told 'this script installs Debian packages; elsewhere install the equivalents of: gcc g++'

# NVRTC: kt says what GPU and compiler there are; pip brings a wheel with two libraries.
program "$work/tree/build/release/kt" 'if [ -f "$HOME/data/kt/nvrtc/libnvrtc.so" ]; then compiler="NVRTC 13.2 of $HOME"; else compiler=$COMPILER; fi' \
    'echo "ok    gpu               $GPU"' 'echo "ok    gpu compiler      $compiler"'
program "$work/bin/python3" 'mkdir -p "$3/bin"' 'cp "$STATE/pip" "$3/bin/pip"' 'cp "$STATE/unzip" "$3/bin/python"'
nvrtc() { # GPU COMPILER STATUS
    start "$all python3 python3-venv" "$all python3 python3-venv"
    program "$work/bin/dpkg-query" 'echo -n installed'
    program "$STATE/pip" 'echo "$*" >>"$STATE/calls"' '[ -n "$PIP_WORKS" ] || exit 1' 'while [ "$1" != --dest ]; do shift; done' ': >"$2/nvidia_cuda_nvrtc-1.whl"'
    program "$STATE/unzip" 'mkdir -p "$5/nvidia/cu13/lib"' ': >"$5/nvidia/cu13/lib/libnvrtc.so.13"' ': >"$5/nvidia/cu13/lib/libnvrtc-builtins.so.13.2"'
    export GPU=$1 COMPILER=$2 HOME=$STATE XDG_DATA_HOME=$STATE/data
    run gpu "$3"
}
export PIP_WORKS=1
small='Pretended Small, sm_86, 16 GiB, driver of CUDA 13.0: in use'

case='no GPU'
nvrtc 'no CUDA driver: libcuda.so.1 is not installed' 'no NVRTC to compile GPU kernels with' 1
told 'no GPU to make kernels for: no CUDA driver: libcuda.so.1 is not installed'
says 'fetches' [ ! -s "$STATE/calls" ]

case='NVRTC is there'
nvrtc "$small" 'NVRTC 13.0 of /usr/local/cuda' 0
told 'NVRTC 13.0 of /usr/local/cuda is there already'
says 'fetches' [ ! -s "$STATE/calls" ]

case='NVRTC is fetched'
nvrtc "$small" 'no NVRTC to compile GPU kernels with' 0
says 'fetches another package' grep -q 'nvidia-cuda-nvrtc$' "$STATE/calls"
for name in libnvrtc.so libnvrtc.so.13 libnvrtc-builtins.so.13.2; do
    says "$name is not there" [ -e "$STATE/data/kt/nvrtc/$name" ]
done
nvrtc "${small/13.0/12.8}" 'no NVRTC to compile GPU kernels with' 0
says 'fetches what an older driver does not take' grep -q 'nvidia-cuda-nvrtc-cu12$' "$STATE/calls"

case='NVRTC cannot be fetched'
PIP_WORKS=
nvrtc "$small" 'no NVRTC to compile GPU kernels with' 1
told 'nvidia-cuda-nvrtc cannot be had; a CUDA toolkit has NVRTC, too'

echo "$tests checks, $failures failed"
[ $failures = 0 ]
