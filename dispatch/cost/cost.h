/* Roofline estimate for a cell that has no row. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_COST_H
#define KT_DISPATCH_COST_H

#include "dispatch/topology/topology.h"
#include "kt/variant.h"

/* Keys that a row of an attention problem sees at most: its context or, if smaller, its window. */
int64_t kt_problem_keys(const kt_problem *p);

/* Bytes streamed from memory and operations (2 per multiply-add) of one problem: a GEMM of m
 * rows, or one expert with m rows (gate, up, down). What is streamed is the weights; for ATTN
 * the cache; for ops with neither the rows. */
void kt_problem_work(const kt_problem *p, double *weight_bytes, double *operations);

/* Bytes per ns that so many threads read from memory, and operations per ns of one thread's best
 * instruction of these sets: as measured, or conservative built-in values. */
double kt_stream_gbs(const kt_ceilings *c, int threads);
double kt_peak_gops(kt_isa isa, const kt_ceilings *c);

/* The same for what this variant multiplies with: without VNNI bytes are multiplied two or three
 * times as fast as floats. */
double kt_variant_gops(const kt_variant *v, const kt_ceilings *c);

/* Lower bound in ns for one call on `threads` threads: max(bytes / stream, operations / peak of the
 * variant). Ceilings that were not measured take conservative built-in values. Tiles multiply
 * whole tiles of 16 rows, and more than once where the variant's kind of arithmetic takes several
 * products. */
double kt_cost_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c, int threads);

/* What the call is expected to take, for choosing where nothing was measured: as the bound, but
 * multiplying at the share of the peak, and with the work per call, that kernels of this kind were
 * measured to have. It says from how many rows on tiles are worth it; not how good a kernel could
 * be. */
double kt_cost_expected_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c,
                           int threads);

/* Why something ran faster than that bound: to be printed behind "123 % of the roofline". "" when
 * it did not. */
const char *kt_cost_excess(const kt_problem *p, const kt_variant *v, const kt_ceilings *c,
                           int threads, double time_ns);

#endif
