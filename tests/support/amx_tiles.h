/* The state and the arithmetic of AMX, in plain C: eight tiles of up to 16 rows of 64 bytes, and what
 * each instruction does to them. Written from the operation sections of Intel's manual (volume 2,
 * LDTILECFG to TILEZERO, and the exception classes AMX-E1 to E6); nothing here touches signals or machine
 * code, which is amx_emulator.c.
 *
 * Every function returns the fault the instruction would raise. `reason` says which rule; after a
 * fault nothing but start_row has changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_AMX_TILES_H
#define KT_TESTS_AMX_TILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KT_AMX_TILES = 8, KT_AMX_ROWS = 16, KT_AMX_ROW_BYTES = 64 };

typedef enum kt_amx_kind {
    KT_AMX_FINE = 0,
    KT_AMX_UD,   /* #UD, a SIGILL */
    KT_AMX_GP,   /* #GP, a SIGSEGV */
    KT_AMX_FAULT /* a page that cannot be read or written, a SIGSEGV */
} kt_amx_kind;

typedef struct kt_amx_fault {
    kt_amx_kind kind;
    char reason[96]; /* empty when the hardware itself refused */
} kt_amx_fault;

typedef struct kt_amx_tile {
    uint8_t row[KT_AMX_ROWS][KT_AMX_ROW_BYTES];
} kt_amx_tile;

/* All zero is the initial state. */
typedef struct kt_amx_state {
    uint8_t palette; /* 0 = not configured */
    uint8_t start_row;
    uint16_t row_bytes[KT_AMX_TILES]; /* "colsb"; 0 = the tile is not in use */
    uint8_t rows[KT_AMX_TILES];
    kt_amx_tile tile[KT_AMX_TILES];
} kt_amx_state;

/* Which operands of an integer product are signed. */
typedef enum kt_amx_signs { KT_AMX_SS, KT_AMX_SU, KT_AMX_US, KT_AMX_UU } kt_amx_signs;

kt_amx_kind kt_amx_load_config(kt_amx_state *s, const void *config, kt_amx_fault *why);
void kt_amx_store_config(const kt_amx_state *s, void *config);
void kt_amx_release(kt_amx_state *s);
kt_amx_kind kt_amx_zero(kt_amx_state *s, unsigned tile, kt_amx_fault *why);
/* base and stride as the address computation yields them: they wrap like registers. */
kt_amx_kind kt_amx_load(kt_amx_state *s, unsigned tile, uint64_t base, uint64_t stride,
                        kt_amx_fault *why);
kt_amx_kind kt_amx_store(kt_amx_state *s, unsigned tile, uint64_t base, uint64_t stride,
                         kt_amx_fault *why);
/* Products of halves in plain C, as the manual has them, also where the CPU's vectors could do
 * them: for tests of either by the other. */
extern bool kt_amx_plain_products;

/* c += a * b */
kt_amx_kind kt_amx_dot_int8(kt_amx_state *s, kt_amx_signs signs, unsigned c, unsigned a, unsigned b,
                            kt_amx_fault *why);
kt_amx_kind kt_amx_dot_bf16(kt_amx_state *s, unsigned c, unsigned a, unsigned b, kt_amx_fault *why);
kt_amx_kind kt_amx_dot_fp16(kt_amx_state *s, unsigned c, unsigned a, unsigned b, kt_amx_fault *why);

#endif
