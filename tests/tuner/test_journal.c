/* The journal under damage, kills, a second writer; what a later run may take over.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/rng.h"
#include "tests/support/temp.h"
#include "tuner/store/crc32.h"
#include "tuner/store/ledger.h"
#include "tuner/store/row_json.h"

enum { PATH = 512, RECORDS = 20 };

typedef struct place {
    char folder[256], path[PATH];
} place;

static place make_place(void) {
    place p;
    kt_temp_make(p.folder, sizeof p.folder);
    snprintf(p.path, sizeof p.path, "%s/x.journal.jsonl", p.folder);
    return p;
}

static kt_journal *open_journal(const char *path, bool fresh) {
    kt_journal *j;
    kt_err err;
    cr_assert_eq(kt_journal_open(path, fresh, &j, &err), KT_OK, "%s", err.message);
    return j;
}

static void append(kt_journal *j, int64_t number, const char *text) {
    kt_json_writer w = {0};
    kt_err err;
    kt_json_begin_object(&w);
    kt_json_key(&w, "i");
    kt_json_put_int(&w, number);
    kt_json_key(&w, "text");
    kt_json_put_string(&w, text);
    kt_json_end_object(&w);
    cr_assert_eq(kt_journal_append(j, &w, &err), KT_OK, "%s", err.message);
    kt_json_writer_deinit(&w);
}

static int64_t number_at(const kt_journal *j, size_t i) {
    return kt_json_int(kt_json_get(kt_journal_at(j, i), "i"), -1);
}

/* A journal of RECORDS records; its bytes go to *text. */
static void fill(const place *p, char **text, size_t *size) {
    kt_journal *j = open_journal(p->path, true);
    for (int i = 0; i < RECORDS; i++) append(j, i, i % 3 ? "plain" : "\"quoted\"\n\\ \xc3\xa9");
    kt_journal_close(j);
    cr_assert_eq(kt_file_read(p->path, 1 << 20, text, size, NULL), KT_OK);
}

static void put(const char *path, const char *text, size_t size) {
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(text, 1, size, f) == size);
    fclose(f);
}

Test(journal, checksum_is_the_crc_of_zlib) {
    cr_expect_eq(kt_crc32("123456789", 9), 0xcbf43926u);
    cr_expect_eq(kt_crc32("", 0), 0);
}

Test(journal, records_come_back_in_order) {
    place p = make_place();
    char *text;
    size_t size;
    kt_journal *j;

    fill(&p, &text, &size);
    j = open_journal(p.path, false);
    cr_expect_eq(kt_journal_count(j), RECORDS);
    cr_expect_eq(kt_journal_dropped(j), 0);
    for (size_t i = 0; i < RECORDS; i++) cr_expect_eq(number_at(j, i), (int64_t)i);
    cr_expect_str_eq(kt_json_string(kt_json_get(kt_journal_at(j, 0), "text"), NULL),
                     "\"quoted\"\n\\ \xc3\xa9");
    cr_expect_null(kt_journal_at(j, RECORDS));
    append(j, 77, "later");
    kt_journal_close(j);
    j = open_journal(p.path, false);
    cr_expect_eq(number_at(j, RECORDS), 77);
    kt_journal_close(j);
    j = open_journal(p.path, true);
    cr_expect_eq(kt_journal_count(j), 0, "fresh forgets");
    kt_journal_close(j);
    free(text);
    kt_temp_remove(p.folder);
}

/* A kill leaves the file cut anywhere: whole lines stay, the torn one is cut off, the next record
 * starts on a line of its own. */
Test(journal, cut_at_any_byte_loses_only_the_torn_line) {
    place p = make_place();
    char *text;
    size_t size;

    fill(&p, &text, &size);
    for (size_t cut = 0; cut <= size; cut += cut < 300 ? 1 : 7) {
        size_t whole = 0;
        kt_journal *j;
        for (size_t i = 0; i < cut; i++) whole += text[i] == '\n';
        put(p.path, text, cut);
        j = open_journal(p.path, false);
        cr_assert_eq(kt_journal_count(j), whole, "cut at %zu", cut);
        cr_assert_eq(kt_journal_dropped(j), cut > 0 && text[cut - 1] != '\n', "cut at %zu", cut);
        append(j, 99, "after");
        kt_journal_close(j);
        j = open_journal(p.path, false);
        cr_assert_eq(kt_journal_count(j), whole + 1, "cut at %zu, then appended", cut);
        cr_assert_eq(kt_journal_dropped(j), 0);
        cr_assert_eq(number_at(j, whole), 99);
        kt_journal_close(j);
    }
    free(text);
    kt_temp_remove(p.folder);
}

/* One byte changed anywhere costs one line, or two where it was the end of a line; no damaged
 * record is believed. */
Test(journal, every_damaged_byte_is_noticed) {
    place p = make_place();
    char *text;
    size_t size;
    kt_rng rng;

    fill(&p, &text, &size);
    kt_rng_seed(&rng, 1);
    for (size_t at = 0; at < size; at++) {
        char was = text[at];
        size_t lost;
        kt_journal *j;
        text[at] = (char)(was ^ (1 << kt_rng_below(&rng, 7)));
        put(p.path, text, size);
        cr_assert_eq(kt_journal_read(p.path, &j, NULL), KT_OK);
        lost = RECORDS - kt_journal_count(j);
        cr_assert(lost == 1 || (was == '\n' && lost <= 2), "byte %zu: %zu records lost", at, lost);
        cr_assert(kt_journal_dropped(j) >= 1);
        kt_journal_close(j);
        text[at] = was;
    }
    free(text);
    kt_temp_remove(p.folder);
}

Test(journal, garbage_is_skipped) {
    static const char junk[] = "\n\nnull\n{}\n[1]\n{\"a\":1,\"crc\":\"00000000\"}\n\0\0\xff\n";
    place p = make_place();
    char *text, *both;
    size_t size;
    kt_journal *j;

    fill(&p, &text, &size);
    both = malloc(size + sizeof junk);
    memcpy(both, junk, sizeof junk - 1);
    memcpy(both + sizeof junk - 1, text, size);
    put(p.path, both, size + sizeof junk - 1);
    j = open_journal(p.path, false);
    cr_expect_eq(kt_journal_count(j), RECORDS);
    cr_expect_eq(kt_journal_dropped(j), 7);
    kt_journal_close(j);
    free(both);
    free(text);
    kt_temp_remove(p.folder);
}

Test(journal, a_second_writer_is_refused) {
    place p = make_place();
    kt_journal *first = open_journal(p.path, false), *second = first;
    kt_err err;

    cr_expect_eq(kt_journal_open(p.path, true, &second, &err), KT_E_MISMATCH);
    cr_expect_null(second);
    cr_expect(strstr(err.message, "another kttune"), "%s", err.message);
    append(first, 1, "still mine");
    kt_journal_close(first);
    second = open_journal(p.path, false);
    cr_expect_eq(kt_journal_count(second), 1, "a refused writer erased nothing");
    kt_journal_close(second);
    cr_expect_eq(kt_journal_open("/nonexistent/x", false, &second, &err), KT_E_IO);
    kt_temp_remove(p.folder);
}

Test(journal, lies_beside_its_table) {
    char out[32];
    cr_expect_eq(kt_journal_path_of("a/x.kttable.json", out, sizeof out, NULL), KT_OK);
    cr_expect_str_eq(out, "a/x.journal.jsonl");
    cr_expect_eq(kt_journal_path_of("plain", out, sizeof out, NULL), KT_OK);
    cr_expect_str_eq(out, "plain.journal.jsonl");
    cr_expect_eq(kt_journal_path_of("a_rather_long_name.json", out, sizeof out, NULL),
                 KT_E_INVALID);
}

/* --- the ledger: which records a later run takes over --- */

enum { N = 3, ROUNDS = 4 };

static const kt_variant fast = {.name = "fast__scalar", .op = KT_OP_GEMM, .version = 2};
static const kt_variant slow = {.name = "slow__scalar", .op = KT_OP_GEMM, .version = 1};
static const kt_variant other = {.name = "other__scalar", .op = KT_OP_GEMM, .version = 1};

static kt_fingerprint machine(void) {
    kt_fingerprint f = {.vendor = "AuthenticAMD",
                        .microarch = "zen4",
                        .family = 25,
                        .model = 17,
                        .isa = KT_ISA_AVX2,
                        .usable_cores = 2,
                        .numa_nodes = 1,
                        .memory_bytes = (uint64_t)24 << 30};
    return f;
}

static kt_ledger open_ledger(const place *p, const kt_fingerprint *f) {
    kt_ledger_session session = {.machine = f,
                                 .workload = "w",
                                 .strategy = "auto",
                                 .command = "kttune run --model w",
                                 .seed = 1};
    kt_ledger l;
    kt_err err;
    cr_assert_eq(kt_ledger_open(p->path, &session, &l, &err), KT_OK, "%s", err.message);
    return l;
}

static kt_tune_cell make_cell(int64_t m) {
    kt_tune_cell c = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = m, .n = 64, .k = 32},
        .threads = 1,
        .weight = 1,
        .role = "o"};
    return c;
}

static void make_contenders(kt_contenders *c, kt_contender list[N]) {
    const kt_variant *const variants[N] = {&fast, &slow, &other};
    memset(list, 0, N * sizeof *list);
    for (int i = 0; i < N; i++) {
        list[i].choice.variant = variants[i];
        kt_contender_name(&list[i].choice, list[i].name, sizeof list[i].name);
    }
    *c = (kt_contenders){.list = list, .n = N, .default_index = 1};
}

static void make_samples(kt_samples *s, int rounds) {
    cr_assert_eq(kt_samples_create(N, s, NULL), KT_OK);
    for (int i = 0; i < N; i++) {
        for (int r = 0; r < rounds; r++) s->ns[i * KT_MAX_SAMPLES + r] = 100 * (i + 1) + r + 0.5;
        s->rounds_of[i] = rounds;
    }
    s->n_rounds = rounds;
    s->voided[1] = 1;
    s->n_voided = 1;
}

static kt_rung_store begin_contest(kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *c) {
    kt_contest_terms terms = {.id = kt_contest_id(c, "auto"),
                              .strategy = "auto",
                              .warm_index = -1,
                              .shorten = 1,
                              .units = 1};
    kt_rung_store store;
    kt_err err;
    cr_assert_eq(kt_ledger_contest(l, cell, c, &terms, &store, &err), KT_OK, "%s", err.message);
    return store;
}

/* A journal with one rung of the cell with m rows, on the given machine. */
static void record(const place *p, const kt_fingerprint *f, int64_t m) {
    static const int live[] = {0, 1, 2};
    kt_tune_cell cell = make_cell(m);
    kt_contender list[N];
    kt_contenders c;
    kt_samples s;
    kt_ledger l = open_ledger(p, f);
    kt_rung_store store;

    make_contenders(&c, list);
    make_samples(&s, ROUNDS);
    store = begin_contest(&l, &cell, &c);
    cr_assert_eq(store.record(store.arg, 0, live, N, ROUNDS, 0, &s, NULL), KT_OK);
    kt_samples_destroy(&s);
    kt_ledger_close(&l);
}

static bool replays(const place *p, const kt_fingerprint *f, int64_t m, const kt_contenders *c,
                    const int *live, int n_live, int rounds, kt_samples *s) {
    kt_tune_cell cell = make_cell(m);
    kt_ledger l = open_ledger(p, f);
    kt_rung_store store = begin_contest(&l, &cell, c);
    bool got = store.replay(store.arg, 0, live, n_live, rounds, s);
    kt_ledger_close(&l);
    return got;
}

Test(ledger, an_identical_rung_is_replayed_exactly) {
    static const int live[] = {0, 1, 2};
    place p = make_place();
    kt_fingerprint f = machine();
    kt_contender list[N];
    kt_contenders c;
    kt_samples want, got;

    record(&p, &f, 4);
    make_contenders(&c, list);
    make_samples(&want, ROUNDS);
    cr_assert_eq(kt_samples_create(N, &got, NULL), KT_OK);
    cr_assert(replays(&p, &f, 4, &c, live, N, ROUNDS, &got));
    cr_expect_eq(got.n_rounds, ROUNDS);
    cr_expect_eq(got.n_voided, 1);
    for (int i = 0; i < N; i++)
        for (int r = 0; r < ROUNDS; r++)
            cr_expect_eq(got.ns[i * KT_MAX_SAMPLES + r], want.ns[i * KT_MAX_SAMPLES + r]);
    cr_expect_arr_eq(got.voided, want.voided, ROUNDS);
    kt_samples_destroy(&want);
    kt_samples_destroy(&got);
    kt_temp_remove(p.folder);
}

Test(ledger, anything_else_is_measured_again) {
    static const int live[] = {0, 1, 2}, fewer[] = {0, 1}, swapped[] = {1, 0, 2};
    place p = make_place();
    kt_fingerprint f = machine(), cores = f, isa = f, family = f, probed = f;
    kt_variant newer = fast;
    kt_contender list[N];
    kt_contenders c;
    kt_samples s;

    record(&p, &f, 4);
    make_contenders(&c, list);
    cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
    cr_expect_not(replays(&p, &f, 8, &c, live, N, ROUNDS, &s), "another cell");
    cr_expect_not(replays(&p, &f, 4, &c, fewer, 2, ROUNDS, &s), "fewer contenders");
    cr_expect_not(replays(&p, &f, 4, &c, swapped, N, ROUNDS, &s), "another order of contenders");
    cr_expect_not(replays(&p, &f, 4, &c, live, N, ROUNDS + 1, &s), "another rung length");
    c.default_index = 0;
    cr_expect_not(replays(&p, &f, 4, &c, live, N, ROUNDS, &s), "another contest");
    c.default_index = 1;
    cores.usable_cores = 4;
    cr_expect_not(replays(&p, &cores, 4, &c, live, N, ROUNDS, &s), "more cores");
    isa.isa |= KT_ISA_AVX512;
    cr_expect_not(replays(&p, &isa, 4, &c, live, N, ROUNDS, &s), "a wider instruction set");
    family.family = 26;
    cr_expect_not(replays(&p, &family, 4, &c, live, N, ROUNDS, &s), "another processor");
    newer.version++;
    list[0].choice.variant = &newer;
    kt_contender_name(&list[0].choice, list[0].name, sizeof list[0].name);
    cr_expect_not(replays(&p, &f, 4, &c, live, N, ROUNDS, &s), "a new version of one variant");
    make_contenders(&c, list);
    probed.ceilings.stream_gbs_1t = 33;
    probed.memory_bytes += 4096;
    cr_expect(replays(&p, &probed, 4, &c, live, N, ROUNDS, &s), "a new probe changes nothing");
    kt_samples_destroy(&s);
    kt_temp_remove(p.folder);
}

/* Replace `from` by `to` in the first record of the journal, whose checksum is made right again;
 * "" for both takes the record out. */
static void edit_first_record(const place *p, const char *from, const char *to) {
    char *text, *at, *edited, *newline;
    size_t size, head;
    FILE *f;

    cr_assert_eq(kt_file_read(p->path, 1 << 20, &text, &size, NULL), KT_OK);
    newline = memchr(text, '\n', size);
    edited = malloc(size + 256);
    cr_assert(newline && edited);
    head = (size_t)(newline - text) - 18; /* without ,"crc":"5e1f00aa"} */
    at = memmem(text, head, from, strlen(from));
    cr_assert(at, "the first record lacks %s", from);
    head = (size_t)sprintf(edited, "%.*s%s%.*s", (int)(at - text), text, to,
                           (int)(text + head - at - (ptrdiff_t)strlen(from)), at + strlen(from));
    f = fopen(p->path, "wb");
    if (*from) fprintf(f, "%s,\"crc\":\"%08x\"}\n", edited, kt_crc32(edited, head));
    fwrite(newline + 1, 1, size - (size_t)(newline + 1 - text), f);
    fclose(f);
    free(edited);
    free(text);
}

/* Whoever compiled otherwise, or measured by other rules, has measured something else. */
Test(ledger, other_builds_and_protocols_are_measured_again) {
    static const struct {
        const char *from, *to, *what;
        bool is_taken;
    } edits[] = {{"\"seed\":1", "\"seed\":2", "another seed", true},
                 {"\"compiler\":\"", "\"compiler\":\"x", "another compiler", false},
                 {"\"compiler\":", "\"Compiler\":", "no compiler", false},
                 {"\"version\":\"", "\"version\":\"9", "another version", false},
                 {"\"protocol\":", "\"protocol\":9", "another protocol", false},
                 {"\"protocol\":", "\"Protocol\":", "no protocol", false},
                 {"\"t\":\"session\"", "\"t\":\"sessions\"", "no session", false},
                 {"", "", "records before any session", false}};
    static const int live[] = {0, 1, 2};
    kt_fingerprint f = machine();
    kt_contender list[N];
    kt_contenders c;
    kt_samples s;

    make_contenders(&c, list);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        place p = make_place();
        record(&p, &f, 4);
        edit_first_record(&p, edits[i].from, edits[i].to);
        cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
        cr_expect_eq(replays(&p, &f, 4, &c, live, N, ROUNDS, &s), edits[i].is_taken, "%s",
                     edits[i].what);
        kt_samples_destroy(&s);
        kt_temp_remove(p.folder);
    }
}

/* Two machines share a folder: what is between a session of the other and the next one is the
 * other's. */
Test(ledger, sessions_of_two_machines_are_kept_apart) {
    static const int live[] = {0, 1, 2};
    place p = make_place();
    kt_fingerprint f = machine(), other_machine = f, narrower, probed;
    kt_contender list[N];
    kt_contenders c;
    kt_samples s;

    f.isa = KT_ISA_AVX2 | KT_ISA_AVX512;
    f.ceilings.stream_gbs_1t = 20;
    narrower = probed = f;
    narrower.isa = KT_ISA_AVX2;
    probed.ceilings.stream_gbs_1t = 40;
    other_machine.family = 26;
    record(&p, &f, 4);
    record(&p, &other_machine, 8);
    make_contenders(&c, list);
    cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
    cr_expect_not(replays(&p, &f, 8, &c, live, N, ROUNDS, &s), "the other's");
    cr_expect_not(replays(&p, &other_machine, 4, &c, live, N, ROUNDS, &s), "the first's");
    cr_expect_not(replays(&p, &narrower, 4, &c, live, N, ROUNDS, &s), "fewer instructions");
    cr_expect(replays(&p, &probed, 4, &c, live, N, ROUNDS, &s), "a probe twice as good");
    kt_samples_destroy(&s);
    kt_temp_remove(p.folder);
}

/* The second rung of a contest goes on behind the first; its voided rounds are counted from its
 * own first. */
Test(ledger, later_rungs_are_replayed_behind_earlier_ones) {
    static const int live[] = {0, 1, 2};
    place p = make_place();
    kt_fingerprint f = machine();
    kt_tune_cell cell = make_cell(4);
    kt_contender list[N];
    kt_contenders c;
    kt_samples want, got;
    kt_ledger l = open_ledger(&p, &f);
    kt_rung_store store;

    make_contenders(&c, list);
    make_samples(&want, 2 * ROUNDS);
    want.voided[1] = 0;
    want.voided[ROUNDS + 2] = 1;
    store = begin_contest(&l, &cell, &c);
    want.n_rounds = ROUNDS;
    cr_assert_eq(store.record(store.arg, 0, live, N, ROUNDS, 0, &want, NULL), KT_OK);
    want.n_rounds = 2 * ROUNDS;
    cr_assert_eq(store.record(store.arg, 1, live, N, ROUNDS, ROUNDS, &want, NULL), KT_OK);
    kt_ledger_close(&l);

    cr_assert_eq(kt_samples_create(N, &got, NULL), KT_OK);
    l = open_ledger(&p, &f);
    store = begin_contest(&l, &cell, &c);
    for (int rung = 0; rung < 2; rung++)
        cr_assert(store.replay(store.arg, rung, live, N, ROUNDS, &got), "rung %d", rung);
    cr_expect_eq(got.n_rounds, 2 * ROUNDS);
    cr_expect_eq(got.n_voided, 1);
    cr_expect_arr_eq(got.voided, want.voided, 2 * ROUNDS);
    for (int i = 0; i < N; i++)
        for (int r = 0; r < 2 * ROUNDS; r++)
            cr_expect_eq(got.ns[i * KT_MAX_SAMPLES + r], want.ns[i * KT_MAX_SAMPLES + r]);
    kt_ledger_close(&l);
    kt_samples_destroy(&want);
    kt_samples_destroy(&got);
    kt_temp_remove(p.folder);
}

/* A run that measures everything again takes nothing over, and neither does a later one from
 * before it; what is recorded of other cells stays in force. */
Test(ledger, a_forgotten_cell_is_measured_again) {
    static const int live[] = {0, 1, 2};
    place p = make_place();
    kt_fingerprint f = machine();
    kt_tune_cell cell = make_cell(4);
    kt_contender list[N];
    kt_contenders c;
    kt_samples s;
    kt_rung_store store;
    kt_ledger l;

    record(&p, &f, 4);
    record(&p, &f, 8);
    make_contenders(&c, list);
    cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
    l = open_ledger(&p, &f);
    cr_assert_eq(kt_ledger_forget(&l, &cell, NULL), KT_OK);
    store = begin_contest(&l, &cell, &c);
    cr_expect_not(store.replay(store.arg, 0, live, N, ROUNDS, &s), "in the same session");
    kt_ledger_close(&l);
    cr_expect_not(replays(&p, &f, 4, &c, live, N, ROUNDS, &s), "in the next session");
    cr_expect(replays(&p, &f, 8, &c, live, N, ROUNDS, &s), "another cell");
    record(&p, &f, 4);
    cr_expect(replays(&p, &f, 4, &c, live, N, ROUNDS, &s), "recorded after that");
    kt_samples_destroy(&s);
    kt_temp_remove(p.folder);
}

/* Rung records whose figures make no sense, with a checksum that is right. */
Test(ledger, hostile_rungs_are_not_taken) {
    static const char *const bad[] = {
        "\"void\":[],\"ns\":[[1,2],[1,2]]",          /* too few contenders */
        "\"void\":[],\"ns\":[[1,2],[1,2],[1]]",      /* unequal lengths */
        "\"void\":[],\"ns\":[[],[],[]]",             /* no round */
        "\"void\":[],\"ns\":[[1,2],[1,2],[1,-2]]",   /* negative time */
        "\"void\":[],\"ns\":[[1,2],[1,2],[1,null]]", /* no number */
        "\"void\":[2],\"ns\":[[1,2],[1,2],[1,2]]",   /* voided round out of range */
        "\"void\":[0,9],\"ns\":[[1,2],[1,2],[1,2]]", /* one in, one out of range */
        "\"void\":[-1],\"ns\":[[1,2],[1,2],[1,2]]",  /* likewise */
        "\"void\":[],\"ns\":{\"a\":[1]}",            /* not a list */
    };
    static const int live[] = {0, 1, 2};
    place p = make_place();
    kt_fingerprint f = machine();
    kt_contender list[N];
    kt_contenders c;
    kt_samples s;

    make_contenders(&c, list);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_tune_cell cell = make_cell(4);
        kt_json_writer w = {0};
        char text[1024], key[KT_CELL_KEY_BYTES];
        kt_ledger l = open_ledger(&p, &f);
        snprintf(text, sizeof text,
                 "{\"t\":\"rung\",\"cell\":\"%s\",\"contest\":%lld,\"rounds\":4,"
                 "\"live\":[\"%s\",\"%s\",\"%s\"],\"rung\":0,%s}",
                 kt_cell_key(&cell.problem, 1, key, sizeof key),
                 (long long)kt_contest_id(&c, "auto"), list[0].name, list[1].name, list[2].name,
                 bad[i]);
        kt_json_put_raw(&w, text, strlen(text));
        cr_assert_eq(kt_journal_append(l.journal, &w, NULL), KT_OK);
        kt_json_writer_deinit(&w);
        kt_ledger_close(&l);
        cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
        cr_expect_not(replays(&p, &f, 4, &c, live, N, ROUNDS, &s), "%s", bad[i]);
        cr_expect(s.n_rounds == 0 && s.n_voided == 0 && s.voided[0] == 0, "%s", bad[i]);
        kt_samples_destroy(&s);
    }
    kt_temp_remove(p.folder);
}

/* `row` as JSON, with the first `from` of the text replaced by `to`, read again. */
static kt_status read_edited(const kt_table_row *row, const char *from, const char *to,
                             kt_table_row *out, kt_err *err) {
    kt_json_writer w = {0};
    kt_json_doc *doc;
    char text[4096];
    const char *at;
    kt_status st;

    kt_row_write(row, &w);
    at = strstr(w.text, from);
    cr_assert(at, "'%s' is not in %s", from, w.text);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - w.text), w.text, to, at + strlen(from));
    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, err), KT_OK, "%s", text);
    st = kt_row_read(kt_json_root(doc), "here", out, err);
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
    return st;
}

Test(ledger, rows_keep_their_classes_and_every_member_of_their_problem) {
    static const kt_table_row row = {
        .problem = {.op = KT_OP_MOE_FFN,
                    .weights = KT_W_INT4_G32,
                    .acts = KT_A_INT8_G32,
                    .m = 4,
                    .n = 64,
                    .k = 32,
                    .experts = 8,
                    .topk = 2,
                    .kv_heads = 3,
                    .context = 5,
                    .down = KT_W_INT8_CHANNEL,
                    .act = KT_FFN_SWIGLU_CLAMPED,
                    .v = 7,
                    .window = 9},
        .threads = 1,
        .variant = "fast__scalar",
        .version = 2,
        .time_ns = 100,
        .ci_low = 1,
        .ci_high = 1,
        .default_variant = "slow__scalar",
        .default_ns = 200,
        .status = "tuned",
        .bits = "own",
        .n_others = 1,
        .other = {{.bits = "b", .variant = "v", .config = "rows=2", .version = 3, .time_ns = 7}}};
    static const struct {
        const char *from, *to, *message;
    } bad[] = {{"\"down\":\"w8c\"", "\"down\":\"w3\"", "here: unknown down 'w3'"},
               {"\"swiglu_clamped\"", "\"gelu\"", "here: unknown act 'gelu'"},
               {"\"window\":9", "\"window\":-9", "window"},
               {"\"bits\":\"own\"", "\"bits\":1", "bits"},
               {"\"bits\":\"b\",", "", "bits"},
               {"\"version\":3", "\"version\":-3", "version"}};
    kt_table_row got, plain = row;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(read_edited(&row, "", "", &got, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_table_key_order(&row.problem, 1, &got.problem, 1), 0);
    cr_expect_str_eq(got.bits, "own");
    cr_assert_eq(got.n_others, 1);
    cr_expect_str_eq(got.other[0].bits, "b");
    cr_expect_str_eq(got.other[0].variant, "v");
    cr_expect_str_eq(got.other[0].config, "rows=2");
    cr_expect_eq(got.other[0].version, 3);
    cr_expect_eq(got.other[0].time_ns, 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(read_edited(&row, bad[i].from, bad[i].to, &got, &err), KT_E_FORMAT, "%s",
                     bad[i].to);
        cr_expect(strstr(err.message, bad[i].message), "%s: %s", bad[i].to, err.message);
    }
    plain.bits[0] = '\0'; /* as journals of before */
    plain.n_others = 0;
    cr_assert_eq(read_edited(&plain, "", "", &got, &err), KT_OK, "%s", err.message);
    cr_expect_eq(got.n_others, 0);
    cr_expect_str_eq(got.bits, "");
}

Test(ledger, decisions_hold_for_the_same_contest_only) {
    place p = make_place();
    kt_fingerprint f = machine();
    kt_contender list[N];
    kt_contenders c;
    kt_tune_cell cell = make_cell(4);
    kt_table_row row = {.problem = cell.problem,
                        .threads = 1,
                        .variant = "fast__scalar",
                        .version = 2,
                        .time_ns = 100,
                        .ci_low = 0.99,
                        .ci_high = 1.01,
                        .rounds = 60,
                        .default_variant = "slow__scalar",
                        .default_ns = 200,
                        .status = "tuned",
                        .n_runners = 1,
                        .runner = {{.variant = "other__scalar", .time_ns = 300}}};
    kt_table_row got;
    kt_decision_terms terms = {.rounds = 100, .voided = 3};
    uint32_t id;
    kt_ledger l = open_ledger(&p, &f);

    make_contenders(&c, list);
    id = kt_contest_id(&c, "auto");
    begin_contest(&l, &cell, &c);
    cr_assert_eq(kt_ledger_decide(&l, &row, &terms, NULL), KT_OK);
    cr_expect_not(kt_ledger_decided(&l, &cell, id, &got), "this session's are not looked up");
    kt_ledger_close(&l);

    l = open_ledger(&p, &f);
    cr_assert(kt_ledger_decided(&l, &cell, id, &got));
    cr_expect_str_eq(got.variant, "fast__scalar");
    cr_expect_eq(got.time_ns, 100);
    cr_expect_eq(got.n_runners, 1);
    cr_expect_str_eq(got.runner[0].variant, "other__scalar");
    cr_expect_neq(id, kt_contest_id(&c, "random"));
    c.default_index = 2;
    cr_expect_neq(id, kt_contest_id(&c, "auto"), "another default is another contest");
    cr_expect_not(kt_ledger_decided(&l, &cell, id + 1, &got));
    cell.threads = 2;
    cr_expect_not(kt_ledger_decided(&l, &cell, id, &got));
    cell.threads = 1;
    begin_contest(&l, &cell, &c);
    row.time_ns = 90;
    cr_assert_eq(kt_ledger_keep(&l, &row, &terms, NULL), KT_OK);
    kt_ledger_close(&l);
    c.default_index = 2; /* as the contest was that the row was kept in */
    l = open_ledger(&p, &f);
    cr_assert(kt_ledger_decided(&l, &cell, kt_contest_id(&c, "auto"), &got), "a kept row");
    cr_expect_eq(got.time_ns, 90);
    cr_assert_eq(kt_ledger_forget(&l, &cell, NULL), KT_OK);
    cr_expect_not(kt_ledger_decided(&l, &cell, id, &got), "forgotten");
    kt_ledger_close(&l);
    l = open_ledger(&p, &f);
    cr_expect_not(kt_ledger_decided(&l, &cell, id, &got), "forgotten by the last session");
    kt_ledger_close(&l);
    f.usable_cores = 8;
    l = open_ledger(&p, &f);
    cr_expect_not(kt_ledger_decided(&l, &cell, id, &got), "another machine");
    kt_ledger_close(&l);
    kt_temp_remove(p.folder);
}
