#!/bin/sh
# Plants one violation of every lint rule in a small tree and expects lint.sh to name it; a clean
# tree must pass. lint_selftest.sh LINT_SH. SPDX-License-Identifier: Apache-2.0
set -u
lint=$1
cc=${CC:-cc}
tree=$(mktemp -d) || exit 2
trap 'rm -rf "$tree"' EXIT
tests=0
failures=0
spdx='/* SPDX-License-Identifier: Apache-2.0 */'

# A tree that keeps all rules, with one archive.
fresh() {
    rm -rf "$tree/s" "$tree/o"
    mkdir -p "$tree/s/include/kt" "$tree/s/base" "$tree/s/kernels/op" "$tree/s/dispatch/plan" \
        "$tree/s/dispatch/table" "$tree/s/tuner/space" "$tree/s/runtime/http" "$tree/o"
    cd "$tree/s" || exit 2
    printf '%s\n#include <stdint.h>\nint kt_api(void);\n' "$spdx" >include/kt/api.h
    printf '%s\n#include "kt/api.h"\n' "$spdx" >base/low.h
    printf '%s\n#include "base/low.h"\nint kt_api(void) {\n    return 1;\n}\n' "$spdx" >base/low.c
    printf '%s\n#include "base/low.h"\n' "$spdx" >dispatch/plan/plan.h
    printf '%s\n#include "base/low.h"\n' "$spdx" >dispatch/table/table.h
    printf '%s\n#include "base/low.h"\n' "$spdx" >runtime/http/route.h
}

# Put an object built from a text into the tree's archive: object NAME FLAGS TEXT.
object() {
    printf '%s\n' "$3" >"$tree/$1.c"
    # shellcheck disable=SC2086
    $cc -O1 $2 -c "$tree/$1.c" -o "$tree/$1.c.o" && ar rcs "$tree/o/libkt_base.a" "$tree/$1.c.o"
}

# expect RULE PATTERN: the rule must fail and say so. expect RULE '' : it must pass in silence.
expect() {
    tests=$((tests + 1))
    said=$(sh "$lint" "$tree/s" "$tree/o" "$1")
    status=$?
    if [ -z "$2" ]; then
        [ $status -eq 0 ] && [ -z "$said" ] && return
        echo "lint $1: clean tree refused: $said"
    else
        [ $status -ne 0 ] && echo "$said" | grep -q "$2" && return
        echo "lint $1: did not say '$2' but '$said' (status $status)"
    fi
    failures=$((failures + 1))
}

plant() {
    fresh
    printf '%s\n%s\n' "$spdx" "$2" >"$1"
}

fresh
object good '' 'int kt_good(int a) { return a + 1; }'
for rule in includes headers calls isa length prefix names spdx words journals nomem functions width types twins formats faults; do expect $rule ''; done

plant base/up.c '#include "dispatch/plan/plan.h"'
expect includes 'base/up.c:2: includes: dispatch/plan/plan.h lies above'
plant tuner/space/x.c '#include "runtime/http/route.h"'
expect includes 'tuner includes runtime'
plant runtime/http/x.c '#include "tuner/space/y.h"'
expect includes 'runtime includes tuner'
plant dispatch/table/x.c '#include "dispatch/plan/plan.h"'
expect includes 'later in the order of dispatch'
plant dispatch/plan/x.c '#include "dispatch/table/table.h"'
expect includes ''
plant dispatch/plan/x.c '#include <hwloc.h>'
expect includes 'hwloc.h belongs to dispatch/topology'
plant kernels/op/x__avx2.c '#include <oneapi/dnnl/dnnl.h>'
expect includes 'belongs to \*__lib.c'
plant kernels/op/x_onednn__lib.c '#include <oneapi/dnnl/dnnl.h>'
expect includes ''
plant base/x.c '#include <event2/http.h>'
expect includes 'belongs to runtime/http'
plant runtime/http/x.c '#include <pcre2.h>'
expect includes 'belongs to runtime/token'
plant include/kt/x.h '#include <unistd.h>'
expect includes 'the public API includes unistd.h'
plant base/x.c '#include "low.h"'
expect includes 'not a path from the root'

plant base/x.h 'static inline uint8_t f(void) { return 1; }'
expect headers 'base/x.h: headers: does not compile alone as C11'
plant include/kt/x.h 'static inline char *kt_f(void *p) { return p; }'
expect headers 'does not compile alone as C++17'

fresh
object bad '' 'void exit(int); void kt_bad(void) { exit(1); }'
expect calls 'bad.c.o: uses exit'
fresh
object bad '' '#include <stdio.h>
void kt_bad(int a) { printf("%d", a); }'
expect calls 'uses printf'
fresh
object bad '' '#include <stdio.h>
void kt_bad(int a) { fprintf(stderr, "%d", a); }'
expect calls 'uses stderr'
leaves='void _exit(int); void kt_bad(void) { _exit(1); }'
fresh
object bad '' "$leaves"
expect calls 'uses _exit'
fresh
object bad_child '' "$leaves"
expect calls ''

fresh
object bad '-mavx2 -O3' 'void kt_bad(float *a) { for (int i = 0; i < 64; i++) a[i] *= 2; }'
expect isa 'bad.c.o contains v'
fresh
object bad__scalar '-mavx2 -O3' 'void kt_bad(float *a) { for (int i = 0; i < 64; i++) a[i] *= 2; }'
expect isa 'bad__scalar.c.o contains v'
fresh
object bad__avx2 '-mavx2 -O3' 'void kt_bad(float *a) { for (int i = 0; i < 64; i++) a[i] *= 2; }'
expect isa ''
fresh
object bad__avx2 '-mavx512f -O3 -mprefer-vector-width=512' \
    'void kt_bad(float *a) { for (int i = 0; i < 64; i++) a[i] *= 2; }'
expect isa 'bad__avx2.c.o contains zmm'

fresh
awk 'BEGIN { print "/* SPDX-License-Identifier: Apache-2.0 */"; for (i = 0; i < 800; i++) print "" }' >base/x.c
expect length 'base/x.c: length: 801 lines'
fresh
object bad '' 'int helper(void) { return 1; }'
expect prefix 'global symbol helper lacks kt_'
plant kernels/op/low.c ''
expect names 'low.c'
fresh
printf 'int kt_x;\n' >base/x.c
expect spdx 'base/x.c: spdx'
for word in 'TOD''O' 'FIXM''E' '-march=nativ''e' '-ffast-mat''h'; do
    plant base/x.c "/* $word */"
    expect words 'base/x.c:2: words'
done
plant base/x.c '#if ''0'
expect words 'base/x.c:2: words'

commit() {
    git add -A && git -c user.name=lint -c user.email=lint@localhost commit -qm "$1"
}
# A journal of two lines, filed.
filed() {
    fresh
    mkdir -p results/class
    git init -q . && commit empty
    printf 'one\ntwo\n' >results/class/m.journal.jsonl
    commit plain
    gzip results/class/m.journal.jsonl
    commit filed
}
if command -v git >/dev/null; then
    filed
    printf 'three\n' | gzip >>results/class/m.journal.jsonl.gz
    expect journals ''
    commit more
    expect journals ''
    printf 'one\ntwo\nthree\nfour\n' | gzip >results/class/m.journal.jsonl.gz
    expect journals ''
    commit whole
    expect journals ''
    printf 'one\n2\nthree\n' | gzip >results/class/m.journal.jsonl.gz
    expect journals 'differs from what is filed'
    commit changed
    expect journals 'changes lines that were filed'
    filed
    rm results/class/m.journal.jsonl.gz
    expect journals 'was taken away'
    filed
    printf 'one\n' >results/class/m.journal.jsonl # packed anew from it, a line is lost
    gzip -f results/class/m.journal.jsonl
    expect journals 'differs from what is filed'
    commit shorter
    expect journals 'changes lines that were filed'
else
    echo 'lint_selftest: journals: skipped: no git'
fi

# Who may fail for lack of memory is tested so, or an exception with its reason.
maker='kt_status kt_thing_create(const char *path, kt_thing **out, kt_err *err);'
plant base/x.h "$maker"
expect nomem 'base/x.h: nomem: kt_thing_create is in no'
mkdir -p tests/lint tests/base
echo 'kt_thing_create();' >tests/base/test_base_nomem.c
expect nomem ''
echo 'kt_thing_create works in given memory' >tests/lint/nomem_exceptions.txt
expect nomem 'kt_thing_create is tested'
plant base/x.h "$maker"
mkdir -p tests/lint
echo 'kt_thing_create works in given memory' >tests/lint/nomem_exceptions.txt
expect nomem ''
echo 'kt_thing_create' >tests/lint/nomem_exceptions.txt
expect nomem 'kt_thing_create is in no'
echo 'kt_other_load is not there' >>tests/lint/nomem_exceptions.txt
expect nomem 'kt_other_load is not declared'
plant base/x.h 'kt_status kt_thing_threads(void);'
expect nomem ''
# A function of N lines, signature and braces included.
long_function() {
    awk -v n="$1" 'BEGIN { print "static int kt_f(int a,\n                int b) {"; for (i = 3; i < n; i++) print "    a += b;"; print "}" }'
}
plant base/x.c "$(long_function 61)"
expect functions 'base/x.c:2: functions: 61 lines'
plant base/x.c "$(long_function 60)"
expect functions ''
plant kernels/op/x__avx2.c "$(long_function 61)"
expect functions ''
plant base/x.c "struct kt_x {
$(awk 'BEGIN { for (i = 0; i < 70; i++) print "    int x" i ";" }')
};"
expect functions ''
plant base/x.c "/* $(awk 'BEGIN { for (i = 0; i < 96; i++) printf "x" }') */"
expect width 'base/x.c:2: width: 102 columns'
plant base/x.h 'typedef struct kt_twin {
    int x;
} kt_twin;'
printf '%s\nstruct kt_twin {\n    int y;\n};\n' "$spdx" >runtime/http/y.h
expect types 'runtime/http/y.h:2: types: kt_twin is also in base/x.h'
# What was there when the rule came is let pass, one more is not.
mkdir -p tests/lint
echo 'types 1' >tests/lint/recorded.txt
expect types ''
printf '%s\nenum kt_twin {\n    KT_Z\n};\n' "$spdx" >tuner/space/z.h
expect types 'types: 2 violations, at most 1'

# kernel FILE OP LAYOUT WEIGHTS: a variant that multiplies.
kernel() {
    name=${1##*/}
    printf '%s\nKT_VARIANT(%s) = {\n    .name = "%s",\n    .op = %s,\n    .weights = %s,\n    .acts = 1u,\n    .isa = 2,\n' \
        "$spdx" "${name%.c}" "${name%.c}" "$2" "$4" >"$1"
    printf '    .bits = "same",\n    .layout = "%s",\n};\n' "$3" >>"$1"
}
fresh
kernel kernels/op/x_p64__avx2.c KT_OP_GEMM p64 '1u'
expect twins 'x_p64__avx2.c: twins: a kernel over p64 panels is one file of kernels/p64'
fresh
kernel kernels/op/x_own__avx2.c KT_OP_GEMM own '1u << KT_W_A |
               1u << KT_W_B'
kernel kernels/op/y_own__avx2.c KT_OP_MOE_FFN own '1u << KT_W_A | 1u << KT_W_B'
expect twins 'y_own__avx2.c: twins: differs from kernels/op/x_own__avx2.c in the operation alone'
kernel kernels/op/y_own__avx2.c KT_OP_MOE_FFN own '1u << KT_W_A'
expect twins ''
kernel kernels/op/y_own__avx2.c KT_OP_GEMM own '1u << KT_W_A | 1u << KT_W_B'
expect twins ''
rm kernels/op/*own*
kernel kernels/op/x_blis__lib.c KT_OP_GEMM p64 '1u'
kernel kernels/op/y_blis__lib.c KT_OP_MOE_FFN p64 '1u'
expect twins ''

# A format of blocks, one of another kind, a kernel that names the former, and base/x.c as given.
name_formats() {
    plant base/x.c "$1"
    mkdir -p kernels/formats tests/lint
    printf '%s\nKT_FORMAT_IS(TOY3, 1);\nKT_FORMAT_BLOCKS(2, 1, 32, 32);\nint kt_w = KT_W_TOY3;\n' "$spdx" >kernels/formats/wtoy3.c
    printf '%s\nKT_FORMAT_IS(PLAIN, 2);\nint kt_p = KT_W_PLAIN;\n' "$spdx" >kernels/formats/wplain.c
    printf '%s\nint kt_x = KT_W_TOY3;\n' "$spdx" >kernels/op/x__avx2.c
}
name_formats 'int kt_x = KT_W_PLAIN; /* not KT_W_TOY3
 * nor "wtoy3" */'
expect formats ''
name_formats 'int kt_x = KT_W_TOY3;'
expect formats 'base/x.c: formats: names TOY3, which is the matter of its own file'
name_formats 'const char *kt_x = "toy3"; /* a word of the command line */'
expect formats 'base/x.c: formats: names TOY3'
name_formats '#define KT_LIST(each) each(TOY3) each(PLAIN)'
expect formats 'base/x.c: formats: names TOY3'
echo 'base/x.c TOY3: a reason' >tests/lint/format_names.txt
expect formats ''
name_formats 'int kt_x;'
echo 'base/x.c TOY3: a reason' >tests/lint/format_names.txt
expect formats 'format_names.txt: formats: base/x.c does not name TOY3'

# Faults of base/low.c, which says `return 1;`.
faults() {
    fresh
    mkdir -p tests/mutation
    printf '# comment\n\ntest t/t.t %s\n' "$1" >tests/mutation/mutants.txt
}
faults 'base/low.c @@ return 1; @@ return 2;'
expect faults ''
faults 'base/low.c @@ return 3; @@ return 2;'
expect faults 'mutants.txt:3: faults: base/low.c does not hold: return 3;'
faults 'base/gone.c @@ return 1; @@ return 2;'
expect faults 'base/gone.c does not hold'
faults 'base/low.c @@ return 1;'
expect faults 'mutants.txt:3: faults'

echo "$tests planted cases, $failures not caught"
[ $failures -eq 0 ]
