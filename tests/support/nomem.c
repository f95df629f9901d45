/* The linker sends the program's allocations through the functions below; they count what is held
 * and fail when told to. Threads may allocate at the same time, so all counts are atomic.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/nomem.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long until_failure = -1; /* allocations that still succeed; negative = all */
static atomic_long seen;               /* allocations asked for */
static atomic_long blocks, streams, threads, objects, mapped_bytes;

static _Thread_local bool is_spared;

/* For messages, also from a crash. */
static struct {
    const char *function;
    long number;
    const char *kind;
    size_t bytes;
    const char *at; /* return address */
} failure;

extern const char __executable_start[];

static bool fails(const char *kind, size_t bytes, void *at) {
    if (is_spared) return false;
    atomic_fetch_add(&seen, 1);
    if (atomic_load(&until_failure) < 0 || atomic_fetch_sub(&until_failure, 1) != 0) return false;
    failure.kind = kind;
    failure.bytes = bytes;
    failure.at = at;
    errno = ENOMEM;
    return true;
}

static void *counted(void *p) {
    if (p) atomic_fetch_add(&blocks, 1);
    return p;
}

/* clang-format off */
#define FAILS(bytes) fails(__func__ + sizeof "__wrap" , bytes, __builtin_return_address(0))
#define WRAPPED(type, name, ...) type __real_##name(__VA_ARGS__); \
                                 type __wrap_##name(__VA_ARGS__); \
                                 type __wrap_##name(__VA_ARGS__)
/* clang-format on */

WRAPPED(void *, malloc, size_t bytes) {
    return FAILS(bytes) ? NULL : counted(__real_malloc(bytes));
}
WRAPPED(void *, calloc, size_t n, size_t bytes) {
    return FAILS(n * bytes) ? NULL : counted(__real_calloc(n, bytes));
}
WRAPPED(void *, realloc, void *p, size_t bytes) {
    if (FAILS(bytes)) return NULL;
    return p ? __real_realloc(p, bytes) : counted(__real_realloc(p, bytes));
}
WRAPPED(void, free, void *p) {
    if (p) atomic_fetch_sub(&blocks, 1);
    __real_free(p);
}
WRAPPED(void *, aligned_alloc, size_t align, size_t bytes) {
    return FAILS(bytes) ? NULL : counted(__real_aligned_alloc(align, bytes));
}
WRAPPED(int, posix_memalign, void **out, size_t align, size_t bytes) {
    int rc = FAILS(bytes) ? ENOMEM : __real_posix_memalign(out, align, bytes);
    if (rc == 0) counted(*out);
    return rc;
}
WRAPPED(char *, strdup, const char *s) {
    return FAILS(strlen(s) + 1) ? NULL : counted(__real_strdup(s));
}
WRAPPED(char *, strndup, const char *s, size_t n) {
    return FAILS(n + 1) ? NULL : counted(__real_strndup(s, n));
}
/* Only the form that allocates is used in the tree. */
WRAPPED(char *, realpath, const char *path, char *out) {
    return FAILS(0) ? NULL : counted(__real_realpath(path, out));
}

int __wrap_asprintf(char **out, const char *format, ...);
int __wrap_asprintf(char **out, const char *format, ...) {
    va_list args;
    int n;

    if (FAILS(0)) return -1;
    va_start(args, format);
    n = vasprintf(out, format, args);
    va_end(args);
    if (n >= 0) counted(*out);
    return n;
}

/* The list and its entries are the caller's blocks. */
WRAPPED(int, scandir, const char *path, struct dirent ***out, int (*wanted)(const struct dirent *),
        int (*order)(const struct dirent **, const struct dirent **)) {
    int n = FAILS(0) ? -1 : __real_scandir(path, out, wanted, order);
    if (n >= 0) atomic_fetch_add(&blocks, n + 1);
    return n;
}

/* The text of a memory stream is the caller's block from its opening on: it may have to be freed
 * even where closing failed. */
WRAPPED(FILE *, open_memstream, char **text, size_t *bytes) {
    FILE *f = FAILS(0) ? NULL : __real_open_memstream(text, bytes);
    if (f) atomic_fetch_add(&streams, 1);
    if (f) atomic_fetch_add(&blocks, 1);
    return f;
}
WRAPPED(FILE *, fopen, const char *path, const char *mode) {
    FILE *f = __real_fopen(path, mode);
    if (f) atomic_fetch_add(&streams, 1);
    return f;
}
WRAPPED(int, fclose, FILE *f) {
    atomic_fetch_sub(&streams, 1);
    return __real_fclose(f);
}

WRAPPED(void *, mmap, void *at, size_t bytes, int prot, int flags, int fd, off_t offset) {
    void *p = FAILS(bytes) ? MAP_FAILED : __real_mmap(at, bytes, prot, flags, fd, offset);
    if (p != MAP_FAILED) atomic_fetch_add(&mapped_bytes, (long)((bytes + 4095) & ~(size_t)4095));
    return p;
}
WRAPPED(int, munmap, void *p, size_t bytes) {
    atomic_fetch_sub(&mapped_bytes, (long)((bytes + 4095) & ~(size_t)4095));
    return __real_munmap(p, bytes);
}

WRAPPED(int, pthread_create, pthread_t *out, const pthread_attr_t *how, void *(*run)(void *),
        void *arg) {
    int rc = FAILS(0) ? EAGAIN : __real_pthread_create(out, how, run, arg);
    if (rc == 0) atomic_fetch_add(&threads, 1);
    return rc;
}
WRAPPED(int, pthread_join, pthread_t thread, void **result) {
    int rc = __real_pthread_join(thread, result);
    if (rc == 0) atomic_fetch_sub(&threads, 1);
    return rc;
}

/* Objects of libraries: their constructors fail as if they had found no memory. */
#define OBJECT(type, name, parameters, ...)                       \
    type __real_##name parameters;                                \
    type __wrap_##name parameters;                                \
    type __wrap_##name parameters {                               \
        type made = FAILS(0) ? NULL : __real_##name(__VA_ARGS__); \
        if (made) atomic_fetch_add(&objects, 1);                  \
        return made;                                              \
    }
#define OBJECT_END(name)                           \
    void __real_##name(void *object);              \
    void __wrap_##name(void *object);              \
    void __wrap_##name(void *object) {             \
        if (object) atomic_fetch_sub(&objects, 1); \
        __real_##name(object);                     \
    }

OBJECT(void *, event_base_new, (void))
OBJECT_END(event_base_free)
OBJECT(void *, event_new, (void *base, int fd, short what, void *run, void *arg), base, fd, what,
       run, arg)
OBJECT_END(event_free)
OBJECT(void *, evconnlistener_new,
       (void *base, void *run, void *arg, unsigned flags, int backlog, int fd), base, run, arg,
       flags, backlog, fd)
OBJECT_END(evconnlistener_free)
OBJECT(void *, pcre2_compile_context_create_8, (void *general), general)
OBJECT_END(pcre2_compile_context_free_8)
OBJECT(void *, pcre2_match_context_create_8, (void *general), general)
OBJECT_END(pcre2_match_context_free_8)
OBJECT(void *, pcre2_match_data_create_8, (uint32_t pairs, void *general), pairs, general)
OBJECT_END(pcre2_match_data_free_8)
OBJECT_END(pcre2_code_free_8)
OBJECT(void *, hwloc_bitmap_alloc, (void))
OBJECT(void *, hwloc_bitmap_dup, (const void *set), set)
OBJECT_END(hwloc_bitmap_free)
OBJECT_END(hwloc_topology_destroy)

enum { PCRE2_NO_MEMORY = 121 };
WRAPPED(void *, pcre2_compile_8, const uint8_t *pattern, size_t size, uint32_t options, int *error,
        size_t *where, void *context) {
    void *code = NULL;

    *error = PCRE2_NO_MEMORY;
    *where = 0;
    if (!FAILS(size)) code = __real_pcre2_compile_8(pattern, size, options, error, where, context);
    if (code) atomic_fetch_add(&objects, 1);
    return code;
}
WRAPPED(int, hwloc_topology_init, void **out) {
    int rc = FAILS(0) ? -1 : __real_hwloc_topology_init(out);
    if (rc == 0) atomic_fetch_add(&objects, 1);
    return rc;
}

static long open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    long n = 0;

    cr_assert_not_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* All zero or equal to another one when nothing leaked between the two. */
typedef struct held {
    long blocks, streams, mapped_bytes, threads, objects, files;
} held;

static held held_now(void) {
    return (held){atomic_load(&blocks),  atomic_load(&streams), atomic_load(&mapped_bytes),
                  atomic_load(&threads), atomic_load(&objects), open_files()};
}

static void check_held(const held *before, const char *when) {
    held now = held_now();
    cr_assert(
        memcmp(before, &now, sizeof now) == 0,
        "%s: allocation %ld (%s of %zu bytes, called from offset 0x%zx of the program): %s: "
        "%+ld blocks, %+ld streams, %+ld mapped bytes, %+ld threads, %+ld objects, %+ld files",
        failure.function, failure.number, failure.kind, failure.bytes,
        (size_t)(failure.at - __executable_start), when, now.blocks - before->blocks,
        now.streams - before->streams, now.mapped_bytes - before->mapped_bytes,
        now.threads - before->threads, now.objects - before->objects, now.files - before->files);
}

void kt_nomem_after(long n) {
    failure.number = n;
    atomic_store(&until_failure, n);
}

bool kt_nomem_failed(void) {
    long left = atomic_exchange(&until_failure, -1);
    return left < 0;
}

long kt_nomem_held(void) {
    held h = held_now();
    return h.blocks + h.streams + h.mapped_bytes + h.threads + h.objects + h.files;
}

void kt_nomem_spare_me(void) {
    is_spared = true;
}

/* A crash names the allocation whose failure led to it. */
static void on_crash(int number) {
    char text[300];
    int n = snprintf(text, sizeof text,
                     "%s: crashed by signal %d after allocation %ld failed (%s, from offset 0x%zx "
                     "of the program)\n",
                     failure.function ? failure.function : "?", number, failure.number,
                     failure.kind ? failure.kind : "none",
                     failure.at ? (size_t)(failure.at - __executable_start) : (size_t)0);
    if (write(2, text, (size_t)n) < 0) _exit(99);
    signal(number, SIG_DFL);
    raise(number);
}

static void name_crashes(void) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        /* AddressSanitizer has better handlers. */
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            signal(numbers[i], on_crash);
    }
}

static bool is_zero(const unsigned char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (p[i]) return false;
    return true;
}

/* One call; true when it came to the failure. A success in spite of it is counted. */
static bool call(const kt_nomem_case *c, void *out, long number, int *n_survived) {
    kt_err err = {KT_OK, ""};
    held before = held_now();
    kt_status st;
    bool did_fail;

    memset(out, 0, c->out_bytes);
    failure.number = number;
    failure.kind = "none";
    atomic_store(&until_failure, number);
    st = c->make(out, c->with, &err);
    did_fail = kt_nomem_failed() && number >= 0;
    if (st == KT_OK) {
        *n_survived += did_fail;
        cr_assert_leq(*n_survived, c->n_optional,
                      "%s: allocation %ld (%s of %zu bytes, called from offset 0x%zx of the "
                      "program) failed, and nobody says so",
                      c->function, number, failure.kind, failure.bytes,
                      (size_t)(failure.at - __executable_start));
        if (c->unmake) c->unmake(out);
        check_held(&before, "after a success and its release");
        return did_fail;
    }
    cr_assert(did_fail, "%s: %s: %s", c->function, kt_status_name(st), err.message);
    check_held(&before, "after the failure");
    cr_assert(st == KT_E_NOMEM && err.status == KT_E_NOMEM && strstr(err.message, c->says),
              "%s: allocation %ld (%s from offset 0x%zx of the program) failed: returned %s, wrote "
              "%s '%s', expected KT_E_NOMEM and a message with '%s'",
              c->function, number, failure.kind, (size_t)(failure.at - __executable_start),
              kt_status_name(st), kt_status_name(err.status), err.message, c->says);
    cr_assert(is_zero(out, c->out_bytes), "%s: allocation %ld (%s): output after the failure",
              c->function, number, failure.kind);
    return true;
}

/* The first call may fill what is kept for the life of the process. */
static void warm_up(const kt_nomem_case *c, void *out) {
    kt_err err = {KT_OK, ""};

    cr_assert_eq(c->make(out, c->with, &err), KT_OK, "%s: %s", c->function, err.message);
    if (c->unmake) c->unmake(out);
}

long kt_nomem_check(const kt_nomem_case *c) {
    const long most = c->most ? c->most : 400;
    void *out = __real_calloc(1, c->out_bytes + 1);
    long total, step = 1, tried = 0;
    int n_survived = 0;

    cr_assert_not_null(out);
    failure.function = c->function;
    failure.at = __executable_start;
    name_crashes();
    warm_up(c, out);
    atomic_store(&seen, 0);
    call(c, out, -1, &n_survived);
    total = atomic_load(&seen);
    for (long i = 0; i < total; i += step) {
        if (i == most / 2 && total > most) step = (total - most / 2 + most / 2 - 1) / (most / 2);
        tried += call(c, out, i, &n_survived);
    }
    call(c, out, -1, &n_survived);
    __real_free(out);
    cr_assert(tried > 0 || c->may_need_none, "%s: nothing could be made to fail", c->function);
    return tried;
}
