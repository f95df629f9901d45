#!/usr/bin/env bash
# What `cmake --install` makes, used as strangers would: headers alone, the list of exported functions, and the
# examples, built by pkg-config, whose texts are those of `kt generate`. usage: install.sh SOURCE_DIR BUILD_DIR
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
src=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
cc=${CC:-cc}
cxx=${CXX:-c++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
failed=0

fail() {
    echo "install: $*"
    failed=1
}

cmake --install "$build" --prefix "$root" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
lib=$(dirname "$(find "$root" -name libkt.so)")
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
read -ra flags < <(pkg-config --cflags kt)
read -ra libs < <(pkg-config --libs kt)

# Each header alone, as C and as the oldest C++; lint tries C++17.
for header in "$root"/include/kt/*.h; do
    name=kt/$(basename "$header")
    printf '#include <%s>\nint nothing;\n' "$name" >"$work/alone.c"
    for standard in c11 c++11; do
        case $standard in c11) compiler="$cc" ;; *) compiler="$cxx -x c++" ;; esac
        $compiler -std=$standard -pedantic -Wall -Wextra -Werror "${flags[@]}" -fsyntax-only "$work/alone.c" \
            2>"$work/log" || fail "$name is not $standard: $(grep -m1 error "$work/log")"
    done
done
for private in variant problem isa; do
    [ ! -e "$root/include/kt/$private.h" ] || fail "kt/$private.h is installed, and is no part of the API"
done

# What headers declare is what the library exports. Without comments, names before a bracket are functions.
cat "$root"/include/kt/*.h | grep -v '^#' | $cc -E -P -x c - | grep -oE '\bkt_[a-z0-9_]+\(' | tr -d '(' |
    sort -u >"$work/declared"
nm -D --defined-only "$lib/libkt.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/exported"
diff "$work/declared" "$work/exported" >"$work/log" ||
    fail "declared (<) and exported (>) differ: $(tr '\n' ' ' <"$work/log")"
[ "$(wc -l <"$work/exported")" -ge 30 ] || fail "only $(wc -l <"$work/exported") functions are exported"
readelf -d "$lib/libkt.so" | grep NEEDED >"$work/needed"
if grep -q libevent "$work/needed"; then fail "libkt.so needs libevent, which only the server uses"; fi

# The examples, and the same texts from the program.
read -ra model < <(echo "$src/datasets/models/tiny-moe")
"$cc" -std=c11 -pedantic -Wall -Wextra -Werror "${flags[@]}" "$src/runtime/examples/two_conversations.c" \
    -o "$work/two_conversations" "${libs[@]}"
"$cxx" -std=c++11 -pedantic -Wall -Wextra -Werror "${flags[@]}" "$src/runtime/examples/two_chats.cpp" \
    -o "$work/two_chats" "${libs[@]}"

generate() { # PROMPT_FILE
    "$root/bin/kt" generate "${model[0]}" -f "$1" -n 24 --deterministic --quiet
}

same() { # NAME: $work/got against $work/want
    cmp -s "$work/got" "$work/want" || {
        fail "$1 and kt generate differ"
        diff "$work/got" "$work/want" || true
    }
}

first='In the beginning God created' second='And it came to pass'
"$work/two_conversations" "${model[0]}" 24 "$first" "$second" >"$work/got"
for text in "$first" "$second"; do
    printf '%s' "$text" >"$work/prompt"
    generate "$work/prompt"
done >"$work/want"
same two_conversations

chat() { # CONTENT
    printf '{"messages": [{"role": "user", "content": "%s"}], "add_generation_prompt": true}' "$1"
}
"$work/two_chats" "${model[0]}" 24 "$(chat 'Who was Moses?')" "$(chat 'Hello')" >"$work/got"
for text in 'Who was Moses?' Hello; do
    chat "$text" | "$root/bin/kt" template "${model[0]}" >"$work/prompt"
    generate "$work/prompt"
done >"$work/want"
same two_chats

# A mistake is told, with the library's words.
if "$work/two_conversations" "$work/nothing" 2 a b 2>"$work/log"; then fail "a missing model is served"; fi
grep -q 'KT_E_NOT_FOUND: .*nothing' "$work/log" || fail "a missing model is not told: $(cat "$work/log")"
exit $failed
