/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device_word.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/cuda_driver.h"

/* A whole number with, where it is bytes, a unit of K, M or G. */
static bool read_number(const char *text, size_t size, bool is_bytes, uint64_t *out) {
    static const char units[] = "KMG";
    char copy[24], *end;
    const char *unit;

    if (size == 0 || size >= sizeof copy || text[0] < '0' || text[0] > '9') return false;
    memcpy(copy, text, size);
    copy[size] = '\0';
    errno = 0;
    *out = strtoull(copy, &end, 10);
    if (errno) return false;
    unit = is_bytes && *end ? strchr(units, *end) : NULL;
    if (unit) *out <<= 10 * (unit - units + 1), end++;
    return *end == '\0' && *out < (uint64_t)1 << 50;
}

static bool is_word(const char *text, size_t size, const char *word) {
    return strlen(word) == size && memcmp(text, word, size) == 0;
}

static bool read_target(const char *text, size_t size, kt_device_options *out) {
    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (is_word(text, size, kt_cuda_targets[i].name)) out->target = kt_cuda_targets[i].name;
    return out->target != NULL;
}

/* One part of an emulated device. */
static bool read_part(const char *text, size_t size, kt_device_options *out) {
    const char *is = memchr(text, '=', size);
    const size_t name = is ? (size_t)(is - text) : size;
    uint64_t n = 0;

    if (!is && is_word(text, size, "lazy")) return out->emulator.lazy = true;
    if (!is && is_word(text, size, "races")) return out->emulator.races = true;
    if (!is) return is_word(text, size, "0");
    is++;
    size -= name + 1;
    if (is_word(text, name, "target")) return read_target(is, size, out);
    if (!read_number(is, size, is_word(text, name, "memory"), &n)) return false;
    if (is_word(text, name, "memory")) {
        out->memory_bytes = n;
        return n > 0;
    }
    if (is_word(text, name, "threads")) {
        out->threads = (int)n;
        return n > 0 && n <= 256;
    }
    if (is_word(text, name, "seed")) {
        out->emulator.seed = (uint32_t)n;
        return n <= UINT32_MAX;
    }
    out->fail_after = (int64_t)n;
    return is_word(text, name, "fail-after");
}

/* ---- several ---- */

/* The devices read so far; log and what else the caller set is in `plain`. */
typedef struct word_list {
    kt_device_options plain, *out;
    int n;
} word_list;

static bool add(word_list *l, const kt_device_options *o) {
    for (int i = 0; i < l->n; i++) /* a GPU has one context, and one share of the memory */
        if (strcmp(o->class, "cuda") == 0 && strcmp(l->out[i].class, "cuda") == 0 &&
            (o->ordinal == l->out[i].ordinal || o->ordinal == KT_DEVICE_ALL ||
             l->out[i].ordinal == KT_DEVICE_ALL))
            return false;
    if (l->n == KT_DEVICES_MOST) return false;
    l->out[l->n++] = *o;
    return true;
}

/* What stands behind the colon of cuda: "0,2" or "all"; NULL = the first one. */
static bool read_gpus(word_list *l, const char *text, size_t size) {
    kt_device_options o = l->plain;
    size_t at = 0;

    o.class = "cuda";
    if (!text) return add(l, &o);
    if (is_word(text, size, "all")) {
        o.ordinal = KT_DEVICE_ALL;
        return add(l, &o);
    }
    for (; at <= size; at++) {
        const char *comma = memchr(text + at, ',', size - at);
        const size_t length = comma ? (size_t)(comma - text) - at : size - at;
        uint64_t ordinal;
        if (!read_number(text + at, length, false, &ordinal) || ordinal > 255) return false;
        o.ordinal = (int)ordinal;
        if (!add(l, &o)) return false;
        at += length;
    }
    return true;
}

/* "*3" of emulated devices; and their parts, NULL = none. */
static bool read_emulated(word_list *l, const char *count, size_t count_size, const char *parts,
                          size_t size) {
    kt_device_options o = l->plain;
    uint64_t n = 1;

    o.class = "emulated";
    if (count_size && (!read_number(count + 1, count_size - 1, false, &n) || *count != '*'))
        return false;
    for (size_t at = 0; parts && at <= size; at++) {
        const char *comma = memchr(parts + at, ',', size - at);
        const size_t length = comma ? (size_t)(comma - parts) - at : size - at;
        if (!read_part(parts + at, length, &o)) return false;
        at += length;
    }
    if (n < 1 || n > KT_DEVICES_MOST) return false;
    while (n-- > 0)
        if (!add(l, &o)) return false;
    return true;
}

static bool read_word(word_list *l, const char *text, size_t size) {
    static const char emulated[] = "emulated";
    const size_t name = sizeof emulated - 1;
    const char *colon = memchr(text, ':', size), *rest = colon ? colon + 1 : NULL;
    const size_t head = colon ? (size_t)(colon - text) : size;
    const size_t left = colon ? size - head - 1 : 0;

    if (is_word(text, head, "cuda")) return read_gpus(l, rest, left);
    if (head < name || memcmp(text, emulated, name) != 0) return false;
    return read_emulated(l, text + name, head - name, rest, left);
}

static kt_status fail_word(const char *word, kt_err *err) {
    return kt_fail(err, KT_E_INVALID,
                   "device '%.60s', expected cpu, cuda, cuda:N, cuda:N,N, cuda:all or emulated "
                   "(runtime/device)",
                   word);
}

kt_status kt_device_words_parse(const char *word, kt_device_options *out, int *n, kt_err *err) {
    word_list l = {.plain = out[0], .out = out};

    *n = 0;
    if (!word || strcmp(word, "cpu") == 0) return KT_OK;
    for (const char *at = word, *plus;; at = plus + 1) {
        plus = strchr(at, '+');
        if (!read_word(&l, at, plus ? (size_t)(plus - at) : strlen(at)))
            return fail_word(word, err);
        if (!plus) break;
    }
    *n = l.n;
    return KT_OK;
}

kt_status kt_device_word_parse(const char *word, bool *is_used, kt_device_options *out,
                               kt_err *err) {
    kt_device_options all[KT_DEVICES_MOST] = {*out};
    int n;

    *is_used = false;
    KT_TRY(kt_device_words_parse(word, all, &n, err));
    if (n > 1 || (n == 1 && all[0].ordinal == KT_DEVICE_ALL))
        return kt_fail(err, KT_E_INVALID, "device '%.60s': expected one device", word);
    *is_used = n == 1;
    if (n == 1) *out = all[0];
    return KT_OK;
}

/* All GPUs that there are. */
static kt_status find_all(kt_device_options *all, int *n, kt_err *err) {
    kt_gpus gpus;

    kt_gpus_probe(&gpus);
    if (gpus.n == 0) return kt_fail(err, KT_E_NOT_FOUND, "cuda:all: %s", gpus.why);
    for (*n = 0; *n < gpus.n && *n < KT_DEVICES_MOST; ++*n) {
        all[*n] = all[0];
        all[*n].ordinal = *n;
    }
    return KT_OK;
}

kt_status kt_devices_open(const char *word, const kt_log *log, kt_device **out, int *n,
                          kt_err *err) {
    kt_device_options all[KT_DEVICES_MOST] = {{.log = log}};
    kt_status st = KT_OK;
    int count;

    *n = 0;
    KT_TRY(kt_device_words_parse(word, all, &count, err));
    if (count == 1 && all[0].ordinal == KT_DEVICE_ALL) KT_TRY(find_all(all, &count, err));
    while (*n < count && st == KT_OK) {
        st = kt_device_open(&all[*n], &out[*n], err);
        if (st == KT_OK) ++*n;
    }
    while (st != KT_OK && *n > 0) kt_device_close(out[--*n]);
    return st;
}
