/* Panel kernels made of third-party libraries, for the __lib variants of gemm and moe_ffn. They are
 * defined in the gemm variant's file, the only one that includes the library's header.
 *
 * A context is what one call needs: opened on the calling thread before the walk, closed behind it.
 * Libraries may take a lock or allocate when they meet a shape for the first time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_TILE_LIBS_H
#define KT_SIMD_TILE_LIBS_H

#include "kernels/p64/p64_glue.h"

typedef struct kt_lib_context {
    void *scratch;    /* kt_<library>_scratch_bytes, 64-byte aligned */
    void *handle[6];  /* the library's objects */
    int64_t shape[2]; /* rows and batch that the primitives were made for */
    int threads;      /* the caller's setting, restored on close */
} kt_lib_context;

/* The walk of a call with a tunable `block` first: a tile of sums, then the library's scratch. */
static inline kt_walk kt_lib_walk(const kt_config *config, void *scratch, kt_lib_context *context) {
    const int block = config->value[0];
    float *tile = scratch;

    *context = (kt_lib_context){.scratch = tile + 64 * block};
    return (kt_walk){.block = block, .rows_outermost = 1, .tile = tile, .context = context};
}

/* Initialise LIBXSMM. It sets OMP_PROC_BIND, which would bind child processes to one core: that is undone. */
void kt_libxsmm_start(void);

/* LIBXSMM: BF16 brgemm straight on the panel, which is its VNNI layout. */
kt_status kt_libxsmm_usable(kt_err *why);
size_t kt_libxsmm_scratch_bytes(int block, int64_t k);
void kt_libxsmm_tile(const kt_p64_tile *t);

/* LIBXSMM on one panel: c[rows, columns] = a * panel, columns <= 64. BF16 x BF16 -> f32, or, as_bytes,
 * uint8 activations x int8 weights -> int32. 0 when the library has no such kernel. */
typedef struct kt_libxsmm_matmul {
    int as_bytes, rows, columns;
    int64_t k, a_stride, c_stride; /* in elements */
    const void *a, *panel;
    void *c;
} kt_libxsmm_matmul;
int kt_libxsmm_multiply(const kt_libxsmm_matmul *call);

/* LIBXSMM: unsigned weights by signed activations, 32 inputs at a time, as their scales demand. */
kt_status kt_libxsmm_int8_usable(kt_err *why);
size_t kt_libxsmm_int8_scratch_bytes(int block, int64_t k);
void kt_libxsmm_int8_tile(const kt_p64_tile *t);

/* Bytes between encoded rows when they are evenly spaced and at least `least` apart, else 0. */
static inline int64_t kt_lib_even_stride(const kt_p64_tile *t, int64_t least) {
    const int64_t stride = t->rows > 1 ? (const char *)t->a[1] - (const char *)t->a[0] : least;
    for (int i = 1; i < t->rows; i++)
        if ((const char *)t->a[i] - (const char *)t->a[i - 1] != stride) return 0;
    return stride >= least ? stride : 0;
}

/* oneDNN: matmul on panels, which are its BA16a64b2a (BF16) and BA16a64b4a (bytes) layouts of a k x n
 * matrix; rows are evenly spaced (2.6: best without gaps). BF16 x BF16 -> f32, or, as_bytes, uint8 x int8 -> int32.
 * With a batch, that many products of signed bytes to int32, side by side in k of the rows, one after the
 * other in the panels, which are plain [batch][k][columns], and in c [batch][rows][columns]. */
typedef struct kt_onednn_matmul {
    int as_bytes;
    int64_t batch; /* 0 = none */
    int64_t rows, columns, k;
    int64_t a_stride, c_stride; /* in elements */
    const void *a, *panels;
    void *c;
} kt_onednn_matmul;

kt_status kt_onednn_usable(kt_err *why);
void kt_onednn_open(kt_lib_context *context);
void kt_onednn_close(kt_lib_context *context);
void kt_onednn_tile(const kt_p64_tile *t);
/* Is this primitive the library's plain C? Where its compiled kernels do not serve (layouts, ONEDNN_MAX_CPU_ISA), it
 * falls back without a word to loops of half a second per row of 4096 x 2048: refused instead. */
int kt_onednn_is_plain(const void *primitive_desc);
/* 0, or the library's status. */
int kt_onednn_multiply(kt_lib_context *context, const kt_onednn_matmul *call);

/* BLIS: sgemm on the panel and the rows, both expanded to f32. */
kt_status kt_blis_usable(kt_err *why);
size_t kt_blis_scratch_bytes(int block, int64_t k);
void kt_blis_tile(const kt_p64_tile *t);

#endif
