#!/usr/bin/env bash
# Follow the walk-through of kernels/WALKTHROUGH.md word for word, in a copy of the tree: walk.sh ROOT. The copy has the
# plain variants and those the text names, so that it builds in half a minute. Exit code 77: this machine cannot.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$1
title='## From nothing to a faster variant'

skip() {
    echo "[SKIP] walkthrough: $*"
    exit 77
}
fail() {
    echo "walk-through: $*" >&2
    exit 1
}

grep -q avx512_vnni /proc/cpuinfo || skip "the text uses AVX-512: needs avx512vnni"
for tool in git cmake ninja objdump; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_DATA_HOME=$work/home GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_NAME=walker GIT_AUTHOR_EMAIL=walker@example.org
export GIT_COMMITTER_NAME=walker GIT_COMMITTER_EMAIL=walker@example.org
unset KT_TABLE KT_DISABLE_ISA COLUMNS

# The tree as it lies there, also where it is not a checkout.
mkdir "$work/tree"
(cd "$root" && tar cf - --exclude=./build --exclude=./.git --exclude=./results --exclude=./tests/data \
    --exclude='*.safetensors' --exclude='./tests/runtime' .) | tar xf - -C "$work/tree"
cd "$work/tree"
for file in kernels/*/*__*.c; do
    case $file in
    *__lib.c) rm "$file" ;;
    *__scalar.c | kernels/probe/* | kernels/encode/* | kernels/formats/*) ;;
    kernels/p64/*__avx512vnni.c | kernels/p64/w8c_a8__avx2.c) case $file in *blocks* | *kquants*) rm "$file" ;; esac ;;
    *) rm "$file" ;;
    esac
done
mkdir results
git init -q . && git add -A && git commit -qm "the tree"

# Blocks of the section, numbered: N.sh, or N.c with the name of its file in N.to.
awk -v title="$title" -v out="$work" '
    $0 == title { inside = 1; next }
    inside && /^## / { exit }
    !inside { next }
    /^<!-- file: / { to = $3; next }
    /^```(sh|c)$/ && !kind {
        kind = substr($0, 4); n++
        name = sprintf("%s/%02d.%s", out, n, kind)
        printf "" > name
        if (kind == "c") print to > sprintf("%s/%02d.to", out, n)
        next
    }
    /^```$/ { close(name); kind = ""; next }
    kind { print > name }
' kernels/WALKTHROUGH.md
ls "$work"/*.sh >/dev/null 2>&1 || fail "kernels/WALKTHROUGH.md has no commands under '$title'"

# cmake builds what was asked for on all cores; the rest is typed as it stands.
for block in "$work"/[0-9]*.sh "$work"/[0-9]*.c; do echo "${block##*/}"; done | sort >"$work/order"
while read -r block; do
    case $block in
    *.c) cp "$work/$block" "$(cat "$work/${block%.c}.to")" ;;
    *.sh)
        sed 's/^/+ /' "$work/$block"
        code=0
        bash -e -o pipefail "$work/$block" >"$work/$block.out" 2>&1 </dev/null || code=$?
        # A duel that stands alone may be lost: the text says so.
        if [ $code = 5 ] && head -n 1 "$work/$block" | grep -q '^build/release/kttune bench '; then
            echo "[RETRY] walkthrough: a duel of block $block was lost, which the text allows"
            code=0
        fi
        if [ $code != 0 ]; then
            tail -n 30 "$work/$block.out"
            fail "the commands of block $block ended with $code"
        fi
        grep -vE '^\[[0-9]+/[0-9]+\]|^--' "$work/$block.out" | tail -n 12 || true
        ;;
    esac
done <"$work/order"

# What the text promises.
loops=$work/loops.json
build/release/kttune inspect w8c_a8p_mine_p64__avx512vnni --json >"$loops"
grep -q '"dot": 48' "$loops" || fail "inspect shows no loop with 48 products"
[ "$(grep -m1 -o '"vector_spills": [0-9]*' "$loops" | sed -n '1s/.*: //p')" = 0 ] || fail "the hot loop spills"
case $(git log -1 --format=%s) in *"w8c_a8p_mine, three rows"*) ;; *) fail "nothing was committed" ;; esac
git ls-files --error-unmatch results/*/tiny-moe.kttable.json >/dev/null || fail "no table in results"
zcat results/*/tiny-moe.journal.jsonl.gz | grep '"t":"rung".*w8c_a8p_mine_p64__avx512vnni@3' >/dev/null ||
    fail "the new variant was in no race"
echo "walk-through: done in $SECONDS s"
