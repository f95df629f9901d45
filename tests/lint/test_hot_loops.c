/* The compiler kept the tiles in registers: the hot loops of the main variants multiply with the
 * instruction meant, and move no vector register (of AVX-512, and AMX, no 512-bit one) from or to
 * the stack.
 *
 * A hot loop is the shortest backward jump's range that holds the instruction. One spilled
 * accumulator costs a few percent; what this guards against (an array left in memory, gcc's
 * copies around its VPDPBUSD intrinsic) costs half.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct line {
    long address, target; /* target of a jump, else -1 */
    int is_hot, is_spill;
} line;

typedef struct listing {
    line *lines;
    size_t count, capacity;
    int has_frame; /* in the function being read, %rbp points into the stack */
} listing;

static const struct {
    const char *object, *instruction;
    size_t least; /* each accumulator of each tile is in a loop: (1 + 2 + 3) * 4 + (4 + 5 + 6) * 2,
                   * (1 + .. + 6) * 2; an AMX step has four sums */
} cases[] = {
    {"p64/w4g32_a8__avx512vnni", "vpdpbusd", 54},
    {"p64/wbf16_abf16__avx512bf16", "vdpbf16ps", 54},
    {"p64/wbf16_abf16__avx512", "vfmadd", 54},
    {"p64/wgroups_a8p__avx512vnni", "vpdpbusd", 54},
    {"p64/w8c_a8p__avx512vnni", "vpdpbusd", 54},
    {"p64/w8g128_a8p__avx512vnni", "vpdpbusd", 48},
    {"p64/w4groups_a8p_r8__avx512vnni", "vpdpbusd", 54},
    {"p64/wblocks_a8_r8__avx512vnni", "vpdpbusd", 42},
    {"p64/w8c_a8__avx512vnni", "vpdpbusd", 114}, /* (4 + 5 + 6) * 4 of rows alone */
    {"p64/wf8_abf16__avx512vbmi", "vdpbf16ps", 54},
    {"p64/w58blocks_a8__avx512vnni", "vpdpbusd", 54},
    {"attn/bf16_dot__avx512vbmi", "vdpbf16ps", 54},
    {"attn/int_dot__avx512vnni", "vpdpbusd", 54},
    {"p64/w8g16m_a8__avx512vnni", "vpdpbusd", 54},
    {"attn/int_words__avx2", "vpmaddwd", 28},
    {"attn/bf16_words__avx2", "vpmaddwd", 28},
    {"attn/bf16_words__avxvnni", "{vex} vpdpwssd", 28},
    {"attn/int_words__avxvnni", "{vex} vpdpwssd", 28},
    {"p64/w8c_a8__avxvnni", "{vex} vpdpbusd", 8},
    /* Tiles are no vectors; those that open and scale around them must not spill either. */
    {"p64/wbf16_abf16__amxbf16", "tdpbf16ps", 8},
    {"p64/wf8_abf16__amxbf16", "tdpbf16ps", 8},
    {"p64/wf16_abf16__amxbf16", "tdpbf16ps", 8},
    {"p64/w48_a8planes__amxint8", "tdpbssd", 8},
    {"p64/wrequant8_a8planes__amxint8", "tdpbssd", 8},
};

/* One line of `objdump -d --no-show-raw-insn`: "  1b5:\tvpdpbusd %zmm8,%zmm9,%zmm0". */
static void add_line(listing *l, const char *text, const char *instruction, const char *vector) {
    char *end;
    long address = strtol(text, &end, 16);
    line added = {.address = address, .target = -1};

    if (strstr(text, ">:")) l->has_frame = 0;
    if (strstr(text, "%rsp,%rbp")) l->has_frame = 1;
    if (end == text || *end != ':') return;
    end += strspn(end + 1, " \t") + 1;
    if (*end == 'j') added.target = strtol(end + strcspn(end, " \t"), NULL, 16);
    added.is_hot = strncmp(end, instruction, strlen(instruction)) == 0;
    added.is_spill =
        strstr(end, vector) && (strstr(end, "(%rsp)") || (l->has_frame && strstr(end, "(%rbp)")));
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 4096;
        l->lines = realloc(l->lines, l->capacity * sizeof *l->lines);
        cr_assert_not_null(l->lines);
    }
    l->lines[l->count++] = added;
}

static listing disassemble(const char *object, const char *instruction) {
    const char *vector = strstr(object, "__avx2") || strstr(object, "__avxvnni") ? "ymm" : "zmm";
    listing l = {NULL, 0, 0, 0};
    char command[1024], text[512];
    FILE *pipe;

    snprintf(command, sizeof command,
             "objdump -d --no-show-raw-insn '%s/CMakeFiles/kt_kernels.dir/kernels/%s.c.o'",
             KT_BUILD_DIR, object);
    pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    while (fgets(text, sizeof text, pipe)) add_line(&l, text, instruction, vector);
    cr_assert_eq(pclose(pipe), 0, "%s", command);
    return l;
}

/* First line and last line of the shortest loop around line i; 0 when there is none. */
static int shortest_loop(const listing *l, size_t i, size_t *first, size_t *last) {
    long best = 0, at = l->lines[i].address;

    for (size_t j = i; j < l->count; j++) {
        long target = l->lines[j].target, length = l->lines[j].address - target;
        if (target < 0 || target > at || length <= 0 || (best && length >= best)) continue;
        best = length;
        *last = j;
        for (*first = i; l->lines[*first].address > target; --*first) {
        }
    }
    return best != 0;
}

ParameterizedTestParameters(hot_loops, keep_their_tiles_in_registers) {
    size_t n = sizeof cases / sizeof *cases, *index = cr_malloc(n * sizeof *index);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, hot_loops, keep_their_tiles_in_registers, .timeout = 180) {
    const char *object = cases[*index].object, *instruction = cases[*index].instruction;
    size_t n_hot = 0, first = 0, last = 0;

#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
    cr_skip_test("only optimised builds keep tiles in registers");
#endif
    if (system("objdump --version >/dev/null 2>&1") != 0) cr_skip_test("objdump is not installed");
    listing l = disassemble(object, instruction);
    for (size_t i = 0; i < l.count; i++) {
        if (!l.lines[i].is_hot || !shortest_loop(&l, i, &first, &last)) continue;
        n_hot++;
        for (size_t j = first; j <= last; j++)
            cr_assert(!l.lines[j].is_spill, "%s: stack access at %lx, in the loop %lx..%lx of %s",
                      object, l.lines[j].address, l.lines[first].address, l.lines[last].address,
                      instruction);
    }
    cr_assert(n_hot >= cases[*index].least, "%s: %zu %s in loops, expected %zu or more", object,
              n_hot, instruction, cases[*index].least);
    free(l.lines);
}

/* --- opened tiles: straight code --- */

/* Blocks of kernels/p64/tiles_block.h: pairs of tiles with so many lines opened a step, or the
 * single tile's block with all 64 (lines 0). `mark` is an instruction of which a line has `marks`.
 * */
static const struct {
    const char *object, *function, *mark;
    int lines, marks;
} blocks[] = {
    {"w4codes_open__amxbf16", "kt_tiles_pair_alone", "vmulph", -1, 4},
    {"w4codes_open__amxbf16", "kt_tiles_table4_1", "vmulph", 1, 4},
    {"w4codes_open__amxbf16", "kt_tiles_table4_2", "vmulph", 2, 4},
    {"w4codes_open__amxbf16", "kt_tiles_table4_4", "vmulph", 4, 4},
    {"w4codes_open__amxbf16", "kt_tiles_table4_8", "vmulph", 8, 4},
    {"w4codes_open__amxbf16", "kt_tiles_table4_single", "vmulph", 0, 4},
    {"w4codes_open__amxbf16", "kt_tiles_zero4_2", "vsubph", 2, 4},
    {"w4codes_open__amxbf16", "kt_tiles_minimum4_2", "vfmadd213ph", 2, 4},
    {"wcodes_open__amxbf16", "kt_tiles_bits2_1", "vfmadd213ph", 1, 4},
    {"wcodes_open__amxbf16", "kt_tiles_bits3_2", "vfmadd213ph", 2, 4},
    {"wcodes_open__amxbf16", "kt_tiles_bits5_2", "vfmadd213ph", 2, 4},
    {"wcodes_open__amxbf16", "kt_tiles_bits6_1", "vfmadd213ph", 1, 4},
    {"wgrids_open__amxbf16", "kt_tiles_grid2_1", "vfmadd213ph", 1, 4},
    {"wgrids_open__amxbf16", "kt_tiles_grid3_1", "vfmadd213ph", 1, 4},
    {"wfloats_open__amxbf16", "kt_tiles_e4m3_1", "vmulph", 1, 4},
    {"wfloats_open__amxbf16", "kt_tiles_bf16_4", "vmovdqa64 ", 4, 8},
};

/* The order that was measured: tiles loaded (t = with the hint, once) and products (d = into), and
 * behind a product its lines. Loads of sums, and what begins and ends them, are left out. */
static const char pair_order[] = "t4 l6 d0 t5 l7 d0 l6 d1 l7 d1 t4 d3 t5 d3 l6 d2 l7 d2 "
                                 "t4 l6 d0 l7 d1 t5 d2 d3 t4 l6 d0 l7 d1 t5 d2 d3 t4 l6 d0 l7 d1 "
                                 "t5 d2 d3 t4 l6 d0 l7 d1 t5 d2 d3 "
                                 "t4 l6 d0 t5 l7 d0 l6 d1 l7 d1 t4 d3 t5 d3 l6 d2 l7 d2 ";
static const char single_order[] = "t4 t5 l6 d0 l7 d0 l6 d1 l7 d1 l6 d2 l7 d2 l6 d3 l7 d3 "
                                   "t4 t5 l6 d0 l7 d0 l6 d1 l7 d1 l6 d2 l7 d2 l6 d3 l7 d3 ";

typedef struct block_seen {
    char order[512];
    size_t used;
    int products, marks[33], spills, backward, done;
} block_seen;

/* The last operand of a tile instruction in AT&T order is its destination. */
static void see(block_seen *b, const char *text, const char *mark) {
    char *end;
    const long address = strtol(text, &end, 16);
    const char *last = strrchr(text, '%');
    int tile = last ? last[4] - '0' : -1;
    char kind = 0;

    if (end == text || *end != ':' || b->done) return;
    end += strspn(end + 1, " \t") + 1;
    b->done = strncmp(end, "ret", 3) == 0; /* behind stand copies for sums that are loaded */
    if (strncmp(end, "tileloaddt1", 11) == 0)
        kind = 't';
    else if (strncmp(end, "tileloadd", 9) == 0 && tile >= 4)
        kind = 'l';
    else if (strncmp(end, "tdpbf16ps", 9) == 0)
        kind = 'd';
    if (kind && b->used + 4 < sizeof b->order)
        b->used += (size_t)snprintf(b->order + b->used, 5, "%c%d ", kind, tile);
    if (kind == 'd' && b->products < 32) b->products++;
    if (strncmp(end, mark, strlen(mark)) == 0) b->marks[b->products]++;
    b->spills += strstr(end, "zmm") && strstr(end, "(%rsp)");
    if (strncmp(end, "jmp", 3) == 0) return; /* from what stands behind the code */
    b->backward += *end == 'j' && strtol(end + strcspn(end, " \t"), NULL, 16) <= address;
}

ParameterizedTestParameters(opened_tiles, have_the_order_that_was_measured) {
    size_t n = sizeof blocks / sizeof *blocks, *index = cr_malloc(n * sizeof *index);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, opened_tiles, have_the_order_that_was_measured, .timeout = 60) {
    const int is_single = blocks[*index].lines == 0, products = is_single ? 16 : 32;
    const int lines = is_single ? 64 : blocks[*index].lines < 0 ? 0 : 8 * blocks[*index].lines;
    char command[1024], text[512];
    block_seen seen = {.order = ""};
    FILE *pipe;

#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
    cr_skip_test("only optimised builds keep tiles in registers");
#endif
    if (system("objdump --version >/dev/null 2>&1") != 0) cr_skip_test("objdump is not installed");
    snprintf(command, sizeof command,
             "objdump -d --no-show-raw-insn --disassemble=%s "
             "'%s/CMakeFiles/kt_kernels.dir/kernels/p64/%s.c.o'",
             blocks[*index].function, KT_BUILD_DIR, blocks[*index].object);
    pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    while (fgets(text, sizeof text, pipe)) see(&seen, text, blocks[*index].mark);
    cr_assert_eq(pclose(pipe), 0, "%s", command);
    cr_assert_str_eq(seen.order, is_single ? single_order : pair_order, "%s: %s",
                     blocks[*index].function, seen.order);
    cr_assert_eq(seen.spills, 0, "%s: %d stack accesses", blocks[*index].function, seen.spills);
    cr_assert_eq(seen.backward, 0, "%s has a loop", blocks[*index].function);
    for (int p = 0; p <= products; p++) {
        const int due =
            p ? (lines * p / products - lines * (p - 1) / products) * blocks[*index].marks : 0;
        cr_assert_eq(seen.marks[p], due, "%s: %d %s behind product %d, expected %d",
                     blocks[*index].function, seen.marks[p], blocks[*index].mark, p, due);
    }
}

/* --- accepts --- */

/* Asked on any machine (kt_variant.accepts), so nothing of the instruction set that its file is
 * compiled for may be in it: no vector of more than 16 bytes, no mask register. */
Test(accepts, is_of_no_instruction_set) {
    static const char command[] =
        "cd '" KT_BUILD_DIR "/CMakeFiles/kt_kernels.dir/kernels' && "
        "for f in */*__avx*.c.o */*__amx*.c.o; do nm \"$f\" | grep -q ' [tT] .*accepts' || "
        "continue; "
        "echo \"$f\"; objdump -d --no-show-raw-insn \"$f\"; done | "
        "awk '/[.]o$/ { file = $0 } /^[0-9a-f]+ </ { within = /accepts/; seen += within } "
        "within && /%[yz]mm|%k[0-7]|%xmm(1[6-9]|[23])/ { print file \": \" $0 } "
        "END { print seen, \"functions\" }'";
    char text[512];
    int functions = 0;
    FILE *pipe;

#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
    cr_skip_test("only optimised builds keep tiles in registers");
#endif
    if (system("objdump --version >/dev/null 2>&1") != 0) cr_skip_test("objdump is not installed");
    pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    while (fgets(text, sizeof text, pipe))
        cr_assert_eq(sscanf(text, "%d functions", &functions), 1, "%s", text);
    cr_assert_eq(pclose(pipe), 0, "%s", command);
    cr_assert_gt(functions, 0, "no function accepts was found");
}
