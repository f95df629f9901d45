/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device_word.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

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

static kt_status fail_word(const char *word, kt_err *err) {
    return kt_fail(err, KT_E_INVALID,
                   "device '%.60s', expected cpu, cuda, cuda:N or emulated (runtime/device)", word);
}

kt_status kt_device_word_parse(const char *word, bool *is_used, kt_device_options *out,
                               kt_err *err) {
    const char *colon = word ? strchr(word, ':') : NULL, *part = colon;
    const size_t size = colon ? (size_t)(colon - word) : word ? strlen(word) : 0;
    uint64_t ordinal = 0;

    *is_used = word && strcmp(word, "cpu") != 0;
    if (!*is_used) return KT_OK;
    if (is_word(word, size, "cuda")) {
        out->class = "cuda";
        if (colon && (!read_number(colon + 1, strlen(colon + 1), false, &ordinal) || ordinal > 255))
            return fail_word(word, err);
        out->ordinal = (int)ordinal;
        return KT_OK;
    }
    if (!is_word(word, size, "emulated")) return fail_word(word, err);
    out->class = "emulated";
    while (part) {
        const char *next = strchr(++part, ',');
        if (!read_part(part, next ? (size_t)(next - part) : strlen(part), out))
            return fail_word(word, err);
        part = next;
    }
    return KT_OK;
}
