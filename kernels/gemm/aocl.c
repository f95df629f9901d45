/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kernels/gemm/aocl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/acts.h"

/* Its functions call each other by names that plain BLIS, linked into this program, has too: they must find
 * their own first. Sanitizers refuse that; they meet only the tests' libraries, which need no BLIS. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OPEN_FLAGS = RTLD_NOW | RTLD_LOCAL };
#else
enum { OPEN_FLAGS = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND };
#endif

/* All of the interface must be there, also what we do not call: a library with half of it is a build that
 * nobody has tested. */
static const char *const required[] = {
    "bli_info_get_version_str",
    "bli_info_get_int_type_size",
    "bli_thread_set_num_threads",
    "aocl_get_reorder_buf_size_s8s8s32os32",
    "aocl_get_reorder_buf_size_u8s8s32os32",
    "aocl_get_reorder_buf_size_bf16bf16f32of32",
    "aocl_get_reorder_buf_size_bf16s4f32of32",
    "aocl_get_reorder_buf_size_s8s8s32os32_sym_quant",
    "aocl_reorder_s8s8s32os32",
    "aocl_reorder_u8s8s32os32",
    "aocl_reorder_bf16bf16f32of32",
    "aocl_reorder_bf16s4f32of32",
    "aocl_reorder_s8s8s32os32_sym_quant",
    "aocl_gemm_s8s8s32os32",
    "aocl_gemm_u8s8s32os32",
    "aocl_gemm_u8s8s32of32",
    "aocl_gemm_bf16bf16f32of32",
    "aocl_gemm_bf16s4f32of32",
    "aocl_gemm_s8s8s32of32_sym_quant",
    "aocl_batch_gemm_s8s8s32os32",
    "aocl_batch_gemm_u8s8s32os32",
    "aocl_batch_gemm_bf16bf16f32of32",
    "aocl_batch_gemm_bf16s4f32of32",
};

static kt_status check_symbols(void *library, const char *name, kt_err *why) {
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!dlsym(library, required[i]))
            return kt_fail(why, KT_E_UNSUPPORTED, "%s: no symbol %s: not a BLIS with aocl_gemm",
                           name, required[i]);
    return KT_OK;
}

/* "AOCL-BLAS 5.2.2 Build 20260101": the structures above are those of 5.2. */
static kt_status check_version(void *library, const char *name, kt_err *why) {
    char *(*version)(void);
    int64_t (*int_bits)(void);
    void *symbol = dlsym(library, "bli_info_get_version_str");
    const char *text, *digits;
    int major = 0, minor = 0;

    memcpy(&version, &symbol, sizeof version);
    symbol = dlsym(library, "bli_info_get_int_type_size");
    memcpy(&int_bits, &symbol, sizeof int_bits);
    text = version();
    digits = text ? strpbrk(text, "0123456789") : NULL;
    if (!digits || sscanf(digits, "%d.%d", &major, &minor) != 2 || major != 5 || minor < 2)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "%s: version '%s', expected AOCL-BLAS 5.2 or newer 5.x", name,
                       text ? text : "");
    if (int_bits() != 64)
        return kt_fail(why, KT_E_UNSUPPORTED, "%s: built for integers of %lld bits, expected 64",
                       name, (long long)int_bits());
    return KT_OK;
}

static void resolve(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void resolve_all(void *library, kt_aocl *out) {
    out->library = library;
    resolve(library, "bli_thread_set_num_threads", &out->set_threads);
    resolve(library, "aocl_get_reorder_buf_size_u8s8s32os32", &out->u8s8_bytes);
    resolve(library, "aocl_get_reorder_buf_size_bf16bf16f32of32", &out->bf16_bytes);
    resolve(library, "aocl_get_reorder_buf_size_bf16s4f32of32", &out->bf16s4_bytes);
    resolve(library, "aocl_get_reorder_buf_size_s8s8s32os32_sym_quant", &out->grouped_bytes);
    resolve(library, "aocl_reorder_u8s8s32os32", &out->u8s8_reorder);
    resolve(library, "aocl_reorder_bf16bf16f32of32", &out->bf16_reorder);
    resolve(library, "aocl_reorder_bf16s4f32of32", &out->bf16s4_reorder);
    resolve(library, "aocl_reorder_s8s8s32os32_sym_quant", &out->grouped_reorder);
    resolve(library, "aocl_gemm_u8s8s32os32", &out->u8s8s32);
    resolve(library, "aocl_gemm_s8s8s32of32_sym_quant", &out->grouped);
    resolve(library, "aocl_gemm_bf16bf16f32of32", &out->bf16);
    resolve(library, "aocl_gemm_bf16s4f32of32", &out->bf16s4);
}

kt_status kt_aocl_load(const char *const *names, kt_aocl *out, kt_err *why) {
    kt_status st = kt_fail(why, KT_E_NOT_FOUND,
                           "no AOCL-BLAS found: put its library's path into KT_AOCL_LIBRARY");

    memset(out, 0, sizeof *out);
    for (; *names; names++) {
        void *library = dlopen(*names, OPEN_FLAGS);
        if (!library) continue;
        st = check_symbols(library, *names, why);
        if (st == KT_OK) st = check_version(library, *names, why);
        if (st == KT_OK) {
            resolve_all(library, out);
            return KT_OK;
        }
        dlclose(library);
    }
    return st;
}

/* What the process found, once. Not state of ours but of the process, as the library itself is: it is
 * written before the first use and never again. */
static struct {
    pthread_once_t once;
    kt_aocl found;
    kt_status status;
    kt_err why;
} process = {.once = PTHREAD_ONCE_INIT};

static void find_once(void) {
    const char *configured = getenv("KT_AOCL_LIBRARY");
    const char *const usual[] = {"libblis-mt.so.5", "libblis-mt.so", "libblis.so.5", "libaocl.so",
                                 NULL};
    const char *const only[] = {configured, NULL};
    process.status =
        kt_aocl_load(configured && *configured ? only : usual, &process.found, &process.why);
}

const kt_aocl *kt_aocl_find(kt_err *why) {
    pthread_once(&process.once, find_once);
    if (process.status == KT_OK) return &process.found;
    kt_fail(why, process.status, "%s", process.why.message);
    return NULL;
}

kt_status kt_aocl_usable(kt_err *why) {
    return kt_aocl_find(why) ? KT_OK : process.status;
}

/* --- the self-test of a GEMM variant --- */

enum { TEST_M = 16, TEST_N = 64, TEST_K = 128 };

/* Where weights are bytes, they and the inputs go to the ends of their range: two products of such
 * do not fit the 16 bits that VPMADDUBSW keeps, and a library that multiplies with it is wrong. */
static int test_weight(kt_weight_format weights, int row, int l) {
    const int code = (row * 5 + l * 11) % 15 - 7;
    return weights == KT_W_INT8_CHANNEL ? 18 * code : code;
}
static int test_input(kt_weight_format weights, int row, int l) {
    const int code = (row * 3 + l * 7) % 19 - 9;
    return weights == KT_W_INT8_CHANNEL ? 14 * code : code;
}
/* Powers of two, another for each group of a row. */
static float test_w_scale(kt_weight_format weights, int row, int group) {
    if (weights == KT_W_BF16) return 1.0f;
    if (weights == KT_W_INT8_CHANNEL) group = 0;
    return 1.0f / (float)(1 << (row + group) % 3);
}
static float test_a_scale(kt_act_format acts, int row, int group) {
    return acts == KT_A_BF16 ? 1.0f : 1.0f / (float)(1 << (row + 2 * group) % 4);
}

typedef struct self_test {
    _Alignas(64) uint16_t bf16[TEST_N * TEST_K];
    int8_t codes[TEST_N * TEST_K];
    uint8_t nibbles[TEST_N * TEST_K / 2];
    uint16_t group_scale[TEST_N * TEST_K / 32];
    float channel_scale[TEST_N];
    float got[TEST_M * TEST_N];
} self_test;

static kt_matrix make_weights(self_test *t, kt_weight_format weights) {
    kt_matrix w = {.format = weights, .n = TEST_N, .k = TEST_K, .data = t->bf16};
    for (int r = 0; r < TEST_N; r++) {
        t->channel_scale[r] = test_w_scale(weights, r, 0);
        for (int l = 0; l < TEST_K; l++) {
            const int value = test_weight(weights, r, l), at = r * TEST_K + l;
            t->bf16[at] = kt_f32_to_bf16((float)value);
            t->codes[at] = (int8_t)value;
            if (l % 2 == 0) t->nibbles[at / 2] = 0;
            t->nibbles[at / 2] |= (uint8_t)(((value + 8) & 15) << l % 2 * 4);
            t->group_scale[at / 32] = kt_f32_to_bf16(test_w_scale(weights, r, l / 32));
        }
    }
    if (weights == KT_W_INT8_CHANNEL) w.data = t->codes, w.scales = t->channel_scale;
    if (weights == KT_W_INT4_G32) w.data = t->nibbles, w.scales = t->group_scale;
    return w;
}

static void make_row(void *row, kt_weight_format weights, kt_act_format acts, int i) {
    for (int l = 0; l < TEST_K; l++) {
        if (acts == KT_A_BF16)
            ((uint16_t *)row)[l] = kt_f32_to_bf16((float)test_input(weights, i, l));
        else
            ((int8_t *)row)[l] = (int8_t)test_input(weights, i, l);
    }
    for (int g = 0; g < TEST_K / 32 && acts == KT_A_INT8_G32; g++) {
        int sum = 0;
        for (int l = 32 * g; l < 32 * g + 32; l++) sum += test_input(weights, i, l);
        kt_a8_scales_mut(row, TEST_K)[g] = test_a_scale(acts, i, g);
        kt_a8_comps_mut(row, TEST_K)[g] = -8 * sum;
    }
}

static kt_status compare(const char *library, const kt_problem *q, const float *got, kt_err *why) {
    for (int i = 0; i < TEST_M; i++)
        for (int r = 0; r < TEST_N; r++) {
            float want = 0;
            for (int l = 0; l < TEST_K; l++)
                want += (float)(test_weight(q->weights, r, l) * test_input(q->weights, i, l)) *
                        test_w_scale(q->weights, r, l / 32) * test_a_scale(q->acts, i, l / 32);
            if (got[i * TEST_N + r] != want)
                return kt_fail(why, KT_E_MISMATCH,
                               "%s failed its %s self-test: row %d output %d is %g, expected %g",
                               library, kt_weight_format_name(q->weights), i, r,
                               (double)got[i * TEST_N + r], (double)want);
        }
    return KT_OK;
}

kt_status kt_lib_self_test(const char *library, const kt_variant *v, kt_weight_format weights,
                           kt_act_format acts, kt_err *why) {
    const kt_problem q = {
        .op = KT_OP_GEMM, .weights = weights, .acts = acts, .m = TEST_M, .n = TEST_N, .k = TEST_K};
    kt_config config = {{0}};
    const size_t stride = kt_act_row_bytes(acts, TEST_K);
    const size_t packed = (v->packed_bytes(&q) + 63) / 64 * 64;
    size_t scratch;
    kt_gemm_call call = {.problem = &q,
                         .config = &config,
                         .a_stride = stride,
                         .m = TEST_M,
                         .panel_end = 1,
                         .ldc = TEST_N};
    self_test *t;
    char *memory;
    kt_matrix w;
    kt_status st;

    for (int i = 0; i < v->n_params; i++) config.value[i] = v->params[i].initial;
    scratch = v->workspace_bytes ? (v->workspace_bytes(&q, &config) + 63) / 64 * 64 : 0;
    memory = aligned_alloc(64, (sizeof *t + 63) / 64 * 64 + packed + TEST_M * stride + scratch);
    if (!memory) return kt_fail(why, KT_E_NOMEM, "%s self-test: no memory", library);
    t = (self_test *)(void *)memory;
    char *bytes = memory + (sizeof *t + 63) / 64 * 64, *rows = bytes + packed;
    memset(t->got, 0, sizeof t->got);
    w = make_weights(t, weights);
    for (int i = 0; i < TEST_M; i++) make_row(rows + (size_t)i * stride, weights, acts, i);
    v->pack_gemm(&q, &w, bytes);
    call.weights = bytes;
    call.a = rows;
    call.c = t->got;
    call.scratch = scratch ? rows + TEST_M * stride : NULL;
    v->gemm(&call);
    st = compare(library, &q, t->got, why);
    free(memory);
    return st;
}
