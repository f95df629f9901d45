/* Parameters of panel_rows: from the CPU's panels to records, the same for hosts and for devices.
 * Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_PANEL_CALLS_H
#define KT_CUDA_PANEL_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* Matrices [n, k] that lie as p64 panels (kernels/formats/p64.h), k a multiple of 32, become
 * records (kt_dev_weights.h). Fields alone are written: what fills a record up to its length
 * stays. */
typedef struct kt_panel_rows {
    const uint8_t *panel; /* of the first matrix; aligned to 64 bytes */
    uint8_t *to;          /* its records; aligned to 16 bytes */
    uint8_t *to_odd;      /* NULL; else rows 32 to 63 of each panel are of a second matrix, whose
                             records begin here, and rows 0 to 31 of the first (gate and up) */
    int64_t matrix_bytes; /* from a matrix's panels to those of the next */
    int64_t panel_bytes;  /* from a panel to the next of its matrix */
    int64_t record_bytes; /* from a matrix's records to those of the next */
    int32_t n, k;
    int32_t panels; /* of a matrix; the grid has as many for each matrix */
    int32_t zero; /* for padding */
} kt_panel_rows;

/* out = id - first where first <= id < end, else -1. */
typedef struct kt_pick_ids {
    const int32_t *id;
    int32_t *out;
    int32_t count, first, end;
    int32_t zero; /* for padding */
} kt_pick_ids;

#endif
