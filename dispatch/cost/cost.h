/* Roofline estimate for a cell that has no row. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_COST_H
#define KT_DISPATCH_COST_H

#include "dispatch/topology/topology.h"
#include "kt/variant.h"

/* Bytes streamed from memory and operations (2 per multiply-add) of one problem: a GEMM of m rows, or
 * one expert with m rows (gate, up, down). What is streamed is the weights; for ATTN the cache; for
 * ops with neither the rows. */
void kt_problem_work(const kt_problem *p, double *weight_bytes, double *operations);

/* Lower bound in ns for one call on `threads` threads: max(bytes / stream, operations / peak of the
 * variant's ISA). Ceilings that were not measured take conservative built-in values. Tiles count 16 rows at
 * least, and the part of their peak that the variant's kind of arithmetic can have. */
double kt_cost_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c, int threads);

#endif
