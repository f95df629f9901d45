/* libcublasLt by dlopen. Its matrices are column-major: c^T = w * a^T is what it is asked for, with
 * w transposed, which is the one layout that 8-bit products have, too.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/cublas_lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/device_class.h"

/* Numbers of cublasLt.h, cublas_api.h and library_types.h, which have been the same since they
 * came. */
enum {
    OLDEST_VERSION = 120000,
    OP_TRANSPOSED = 1,
    COMPUTE_F32 = 68,
    COMPUTE_I32 = 72,
    TYPE_F32 = 0,
    TYPE_I8 = 3,
    TYPE_I32 = 10,
    TYPE_BF16 = 14,
    TYPE_E4M3 = 28,
    OF_TRANSPOSED_A = 3, /* attributes of a product */
    OF_SCALE_A = 17,
    OF_SCALE_B = 18,
    OF_FAST_SUMS = 25,
    OF_MOST_MEMORY = 1, /* of a preference */
    MOST_WAYS = 8
};
static const uint64_t memory_bytes = 64 << 20; /* what sm_90 is said to want, twice */

/* One way to do a product, as the library describes it. */
typedef struct way {
    uint64_t algorithm[8];
    size_t memory;
    int status;
    float waves;
    int reserved[4];
} way;

/* Every function gives 0 or an error's number. */
struct kt_lt {
    void *library;
    size_t (*version)(void);
    const char *(*status_name)(int status);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_make)(void **desc, int compute, int scale);
    int (*desc_drop)(void *desc);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*layout_make)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
    int (*layout_drop)(void *layout);
    int (*wish_make)(void **preference);
    int (*wish_drop)(void *preference);
    int (*wish_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*ask)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
               int most, way *out, int *n);
    int (*multiply)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                    const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                    void *d, void *d_layout, const void *algorithm, void *memory, size_t bytes,
                    void *stream);
    kt_device *d; /* borrowed */
    void *handle, *memory;
    float *one; /* on the device: the scale of E4M3 */
    char name[48];
};

struct kt_lt_product {
    kt_lt *lt;
    kt_lt_kind kind;
    void *desc, *a, *w, *c; /* layouts */
    int n_ways;
    way way[MOST_WAYS];
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"cublasLtGetVersion", offsetof(kt_lt, version)},
                 {"cublasLtGetStatusName", offsetof(kt_lt, status_name)},
                 {"cublasLtCreate", offsetof(kt_lt, create)},
                 {"cublasLtDestroy", offsetof(kt_lt, destroy)},
                 {"cublasLtMatmulDescCreate", offsetof(kt_lt, desc_make)},
                 {"cublasLtMatmulDescDestroy", offsetof(kt_lt, desc_drop)},
                 {"cublasLtMatmulDescSetAttribute", offsetof(kt_lt, desc_set)},
                 {"cublasLtMatrixLayoutCreate", offsetof(kt_lt, layout_make)},
                 {"cublasLtMatrixLayoutDestroy", offsetof(kt_lt, layout_drop)},
                 {"cublasLtMatmulPreferenceCreate", offsetof(kt_lt, wish_make)},
                 {"cublasLtMatmulPreferenceDestroy", offsetof(kt_lt, wish_drop)},
                 {"cublasLtMatmulPreferenceSetAttribute", offsetof(kt_lt, wish_set)},
                 {"cublasLtMatmulAlgoGetHeuristic", offsetof(kt_lt, ask)},
                 {"cublasLtMatmul", offsetof(kt_lt, multiply)}};

static const struct {
    const char *name;
    int in, out, compute, scale;
    size_t in_bytes, out_bytes;
} kinds[KT_LT_KINDS] = {
    [KT_LT_BF16] = {"bf16", TYPE_BF16, TYPE_BF16, COMPUTE_F32, TYPE_F32, 2, 2},
    [KT_LT_BF16_F32] = {"bf16 to f32", TYPE_BF16, TYPE_F32, COMPUTE_F32, TYPE_F32, 2, 4},
    [KT_LT_E4M3] = {"e4m3", TYPE_E4M3, TYPE_BF16, COMPUTE_F32, TYPE_F32, 1, 2},
    [KT_LT_INT8] = {"int8", TYPE_I8, TYPE_I32, COMPUTE_I32, TYPE_I32, 1, 4},
};

const char *kt_lt_kind_name(kt_lt_kind kind) {
    return kinds[kind].name;
}

size_t kt_lt_in_bytes(kt_lt_kind kind) {
    return kinds[kind].in_bytes;
}

size_t kt_lt_out_bytes(kt_lt_kind kind) {
    return kinds[kind].out_bytes;
}

/* ---- opening ---- */

static const char *const places[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                     "/usr/local/cuda/lib64/libcublasLt.so"};

/* It stays when it is closed: it keeps threads and memory of its own. */
enum { HOW_TO_OPEN = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE };

static kt_status open_library(kt_lt *lt, const char **found, kt_err *err) {
    const char *wanted = getenv("KT_CUBLASLT");

    if (wanted && *wanted) {
        *found = wanted;
        lt->library = dlopen(wanted, HOW_TO_OPEN);
        if (lt->library) return KT_OK;
        return kt_fail(err, KT_E_NOT_FOUND, "KT_CUBLASLT: %.200s", dlerror());
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        *found = places[i];
        lt->library = dlopen(places[i], HOW_TO_OPEN);
        if (lt->library) return KT_OK;
    }
    return kt_fail(err, KT_E_NOT_FOUND,
                   "no cuBLASLt: tried %s, %s, %s; KT_CUBLASLT=PATH names another", places[0],
                   places[1], places[2]);
}

static kt_status look_up(kt_lt *lt, kt_err *err) {
    const char *found = NULL;
    size_t version;

    KT_TRY(open_library(lt, &found, err));
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(lt->library, functions[i].name);
        if (!f)
            return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: it has no function %s", found,
                           functions[i].name);
        memcpy((char *)lt + functions[i].offset, &f, sizeof f);
    }
    version = lt->version();
    snprintf(lt->name, sizeof lt->name, "cuBLASLt %zu.%zu", version / 10000, version / 100 % 100);
    if (version >= OLDEST_VERSION) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s, expected 12.0 or newer", found, lt->name);
}

static kt_status check(const kt_lt *lt, int status, const char *what, kt_err *err) {
    if (status == 0) return KT_OK;
    return kt_fail(err, status == 15 ? KT_E_UNSUPPORTED : KT_E_IO, "%s: %s: %s (%d)", lt->name,
                   what, lt->status_name(status), status);
}

static kt_status start(kt_lt *lt, kt_err *err) {
    const float one = 1;
    void *stream;

    KT_TRY(kt_device_driver_stream(lt->d, KT_STREAM_MAIN, &stream, err));
    KT_TRY(look_up(lt, err));
    KT_TRY(check(lt, lt->create(&lt->handle), "starting it", err));
    KT_TRY(kt_device_alloc(lt->d, memory_bytes, &lt->memory, err));
    KT_TRY(kt_device_alloc(lt->d, sizeof one, (void **)&lt->one, err));
    KT_TRY(kt_device_upload(lt->d, KT_STREAM_MAIN, lt->one, &one, sizeof one, err));
    return kt_device_sync(lt->d, NULL, err);
}

kt_status kt_lt_start(kt_device *d, kt_lt **out, kt_err *err) {
    kt_lt *lt = calloc(1, sizeof *lt);
    kt_status st;

    *out = NULL;
    if (!lt) return kt_fail(err, KT_E_NOMEM, "no memory for cuBLASLt");
    lt->d = d;
    st = start(lt, err);
    if (st == KT_OK)
        *out = lt;
    else
        kt_lt_stop(lt);
    return st;
}

void kt_lt_stop(kt_lt *lt) {
    void *stream;

    if (!lt) return;
    if (lt->handle && kt_device_driver_stream(lt->d, KT_STREAM_MAIN, &stream, NULL) == KT_OK)
        lt->destroy(lt->handle);
    kt_device_free(lt->d, lt->memory);
    kt_device_free(lt->d, lt->one);
    if (lt->library) dlclose(lt->library);
    free(lt);
}

const char *kt_lt_name(const kt_lt *lt) {
    return lt->name;
}

kt_device *kt_lt_device(const kt_lt *lt) {
    return lt->d;
}

/* ---- products ---- */

static kt_status describe(kt_lt_product *p, int64_t m, int64_t n, int64_t k, kt_err *err) {
    const kt_lt *lt = p->lt;
    const int32_t transposed = OP_TRANSPOSED;
    const int8_t fast = 1;
    const int in = kinds[p->kind].in;

    KT_TRY(check(lt, lt->desc_make(&p->desc, kinds[p->kind].compute, kinds[p->kind].scale),
                 "a description", err));
    KT_TRY(check(lt, lt->desc_set(p->desc, OF_TRANSPOSED_A, &transposed, sizeof transposed),
                 "the transposed matrix", err));
    KT_TRY(check(lt, lt->layout_make(&p->w, in, (uint64_t)k, (uint64_t)n, k), "a layout", err));
    KT_TRY(check(lt, lt->layout_make(&p->a, in, (uint64_t)k, (uint64_t)m, k), "a layout", err));
    KT_TRY(check(lt, lt->layout_make(&p->c, kinds[p->kind].out, (uint64_t)n, (uint64_t)m, n),
                 "a layout", err));
    if (p->kind != KT_LT_E4M3) return KT_OK;
    KT_TRY(check(lt, lt->desc_set(p->desc, OF_SCALE_A, &lt->one, sizeof lt->one), "a scale", err));
    KT_TRY(check(lt, lt->desc_set(p->desc, OF_SCALE_B, &lt->one, sizeof lt->one), "a scale", err));
    return check(lt, lt->desc_set(p->desc, OF_FAST_SUMS, &fast, sizeof fast), "fast sums", err);
}

/* Ways that are not for this device come with a status of their own, and are left out. */
static kt_status find_ways(kt_lt_product *p, kt_err *err) {
    const kt_lt *lt = p->lt;
    void *wish = NULL;
    int n = 0;
    kt_status st = check(lt, lt->wish_make(&wish), "a preference", err);

    if (st == KT_OK)
        st = check(lt, lt->wish_set(wish, OF_MOST_MEMORY, &memory_bytes, sizeof memory_bytes),
                   "its memory", err);
    if (st == KT_OK)
        st = check(
            lt, lt->ask(lt->handle, p->desc, p->w, p->a, p->c, p->c, wish, MOST_WAYS, p->way, &n),
            kinds[p->kind].name, err);
    if (wish) lt->wish_drop(wish);
    KT_TRY(st);
    for (int i = 0; i < n && i < MOST_WAYS; i++)
        if (p->way[i].status == 0 && p->way[i].memory <= memory_bytes)
            p->way[p->n_ways++] = p->way[i];
    if (p->n_ways) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%s: it knows no way to a product of %s", lt->name,
                   kinds[p->kind].name);
}

kt_status kt_lt_product_make(kt_lt *lt, kt_lt_kind kind, int64_t m, int64_t n, int64_t k,
                             kt_lt_product **out, kt_err *err) {
    kt_lt_product *p;
    void *stream;
    kt_status st;

    *out = NULL;
    KT_TRY(kt_device_driver_stream(lt->d, KT_STREAM_MAIN, &stream, err));
    p = calloc(1, sizeof *p);
    if (!p) return kt_fail(err, KT_E_NOMEM, "no memory for a product");
    p->lt = lt;
    p->kind = kind;
    st = describe(p, m, n, k, err);
    if (st == KT_OK) st = find_ways(p, err);
    if (st == KT_OK)
        *out = p;
    else
        kt_lt_product_drop(p);
    return st;
}

void kt_lt_product_drop(kt_lt_product *p) {
    if (!p) return;
    if (p->desc) p->lt->desc_drop(p->desc);
    if (p->w) p->lt->layout_drop(p->w);
    if (p->a) p->lt->layout_drop(p->a);
    if (p->c) p->lt->layout_drop(p->c);
    free(p);
}

int kt_lt_product_ways(const kt_lt_product *p) {
    return p->n_ways;
}

kt_status kt_lt_product_put(const kt_lt_product *p, int i, const void *a, const void *w, void *c,
                            kt_err *err) {
    const kt_lt *lt = p->lt;
    const bool is_integer = kinds[p->kind].scale == TYPE_I32;
    const float one = 1, zero = 0;
    const int32_t one_int = 1, zero_int = 0;
    const void *alpha = is_integer ? (const void *)&one_int : &one;
    const void *beta = is_integer ? (const void *)&zero_int : &zero;
    void *stream;

    KT_TRY(kt_device_driver_stream(lt->d, KT_STREAM_MAIN, &stream, err));
    return check(lt,
                 lt->multiply(lt->handle, p->desc, alpha, w, p->w, a, p->a, beta, c, p->c, c, p->c,
                              p->way[i].algorithm, lt->memory, memory_bytes, stream),
                 "a product", err);
}
