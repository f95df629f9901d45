/* Runs a target of libFuzzer without libFuzzer: every file of its corpus, then mutations of them,
 * always the same ones, until the seconds are over. So each build tests the targets, whatever
 * compiled it.
 *
 *   try_fuzz_NAME CORPUS SECONDS   the running input lies in try_fuzz_NAME.last, also after a crash
 *   try_fuzz_NAME FILE...          these files, once (a last argument that is no number)
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 16, SECONDS_PER_INPUT = 20, MOST_FILES = 1000 };

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

typedef struct corpus {
    input item[MOST_FILES];
    size_t n;
} corpus;

static uint8_t *last; /* mapped: the input, and zeros */

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void map_last(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

    if (fd < 0 || ftruncate(fd, MOST_BYTES) != 0) die(path);
    last = mmap(NULL, MOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (last == MAP_FAILED) die(path);
    close(fd);
}

/* Each input ends where its memory ends, so that reading over it is seen by a sanitizer. */
static void run(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size ? size : 1);

    if (!exact) die("memory");
    if (size) memcpy(exact, data, size);
    memset(last, 0, MOST_BYTES);
    if (size) memcpy(last, data, size);
    alarm(SECONDS_PER_INPUT);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    free(exact);
}

static input read_file(const char *path) {
    input in = {malloc(MOST_BYTES), 0};
    FILE *f = fopen(path, "rb");

    if (!f || !in.data) die(path);
    in.size = fread(in.data, 1, MOST_BYTES, f);
    if (in.size == MOST_BYTES) {
        fprintf(stderr, "%s: over %d bytes\n", path, (int)MOST_BYTES);
        exit(2);
    }
    fclose(f);
    return in;
}

static void read_corpus(const char *folder, corpus *c) {
    struct dirent **entry = NULL;
    int n = scandir(folder, &entry, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.' && c->n < MOST_FILES) c->item[c->n++] = read_file(path);
        free(entry[i]);
    }
    free(entry);
}

/* ---- mutations ---- */

static void insert(input *in, size_t at, const uint8_t *bytes, size_t n) {
    if (in->size + n >= MOST_BYTES) return;
    memmove(in->data + at + n, in->data + at, in->size - at);
    memcpy(in->data + at, bytes, n);
    in->size += n;
}

static void erase(input *in, size_t at, size_t n) {
    memmove(in->data + at, in->data + at + n, in->size - at - n);
    in->size -= n;
}

/* A piece of some input of the corpus. */
static size_t take_piece(const corpus *c, kt_rng *rng, uint8_t *out, size_t most) {
    const input *from = &c->item[kt_rng_below(rng, c->n)];
    size_t at, n;

    if (from->size == 0) return 0;
    at = kt_rng_below(rng, from->size);
    n = 1 + kt_rng_below(rng, most);
    if (n > from->size - at) n = from->size - at;
    memcpy(out, from->data + at, n);
    return n;
}

static void put_number(input *in, kt_rng *rng) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       0x7f,
                                       0x80,
                                       0xff,
                                       0x7fff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       (uint64_t)1 << 62,
                                       (uint64_t)1 << 63,
                                       UINT64_MAX,
                                       64,
                                       4096,
                                       (uint64_t)1 << 40};
    uint64_t v = numbers[kt_rng_below(rng, sizeof numbers / sizeof *numbers)];
    size_t n = (size_t)1 << kt_rng_below(rng, 4), at;

    if (in->size < n) return;
    at = kt_rng_below(rng, in->size - n + 1);
    for (size_t i = 0; i < n; i++) in->data[at + i] = (uint8_t)(v >> 8 * i);
}

static void mutate(const corpus *c, kt_rng *rng, input *in) {
    uint8_t piece[64], byte = (uint8_t)kt_rng_u64(rng);
    size_t at = in->size ? kt_rng_below(rng, in->size) : 0, n;

    switch (kt_rng_below(rng, 8)) {
    case 0:
        if (in->size) in->data[at] ^= (uint8_t)(1 << (byte & 7));
        break;
    case 1:
        if (in->size) in->data[at] = byte;
        break;
    case 2: insert(in, at, &byte, 1); break;
    case 3:
        n = 1 + kt_rng_below(rng, 16);
        if (at + n <= in->size) erase(in, at, n);
        break;
    case 4:
        n = take_piece(c, rng, piece, sizeof piece);
        insert(in, at, piece, n);
        break;
    case 5:
        n = take_piece(c, rng, piece, sizeof piece);
        if (at + n <= in->size) memcpy(in->data + at, piece, n);
        break;
    case 6: put_number(in, rng); break;
    default:
        if (kt_rng_below(rng, 8) == 0) in->size = at;
        break;
    }
}

static long run_mutations(const corpus *c, double seconds) {
    const int64_t until = kt_clock_ns() + (int64_t)(seconds * 1e9);
    uint8_t *work = malloc(MOST_BYTES);
    kt_rng rng;
    long n = 0;

    if (!work) die("memory");
    kt_rng_seed(&rng, 1);
    for (; kt_clock_ns() < until; n++) {
        const input *from = &c->item[kt_rng_below(&rng, c->n)];
        input in = {work, from->size};
        memcpy(work, from->data, from->size);
        for (uint64_t k = 1 + kt_rng_below(&rng, 5); k > 0; k--) mutate(c, &rng, &in);
        run(in.data, in.size);
    }
    free(work);
    return n;
}

int main(int argc, char **argv) {
    static corpus c;
    char path[4096], *end = NULL;
    double seconds = argc == 3 ? strtod(argv[2], &end) : 0;
    long n = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS SECONDS | FILE...\n", argv[0]);
        return 2;
    }
    snprintf(path, sizeof path, "%.4000s.last", argv[0]);
    map_last(path);
    if (end && *end == 0) {
        read_corpus(argv[1], &c);
        for (size_t i = 0; i < c.n; i++) run(c.item[i].data, c.item[i].size);
        if (c.n == 0) c.item[c.n++] = (input){calloc(1, 1), 0};
        n = run_mutations(&c, seconds);
    } else {
        for (int i = 1; i < argc && c.n < MOST_FILES; i++) {
            c.item[c.n++] = read_file(argv[i]);
            run(c.item[c.n - 1].data, c.item[c.n - 1].size);
        }
    }
    printf("%s: %zu inputs, %ld mutations\n", argv[0], c.n, n);
    for (size_t i = 0; i < c.n; i++) free(c.item[i].data);
    munmap(last, MOST_BYTES);
    unlink(path);
    return n > 0 || seconds == 0 ? 0 : 1;
}
