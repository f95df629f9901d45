/* The plan: layout once per tensor, variant and configuration for every m.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_PLAN_H
#define KT_DISPATCH_PLAN_H

#include "base/log.h"
#include "dispatch/registry/registry.h"
#include "dispatch/table/table.h"
#include "kernels/moe_ffn/moe_layer.h"

typedef struct kt_planner kt_planner;

/* registry and table are borrowed for the planner's life; table may be NULL (heuristics only).
 * machine is this machine's fingerprint (with ceilings when known): a table of another machine
 * is refused whole, with a warning that names the field; a stale one is used with a warning. A
 * row whose variant is unknown, refused here, of another version, or whose config does not parse
 * is ignored. There is at most one warning per planner: about the table when it is created, or
 * else about the first row missing that matters; the rest is in kt_plan_source.note. A planner
 * is used by one thread at a time. */
kt_status kt_planner_create(const kt_registry *registry, const kt_table *table,
                            const kt_fingerprint *machine, const kt_log *log, kt_planner **out,
                            kt_err *err);
/* The same for a caller that knows which command makes the missing rows; tune_command (copied;
 * NULL = made from the table's workload) ends the warnings. */
kt_status kt_planner_create_for(const kt_registry *registry, const kt_table *table,
                                const kt_fingerprint *machine, const char *tune_command,
                                const kt_log *log, kt_planner **out, kt_err *err);
void kt_planner_destroy(kt_planner *p);

/* Rows of one step whose logits are tuned for: the scheduler asks for one row of each answer that
 * it generates, and on one machine these are seldom more. Steps of more, perplexity and `kt logits`
 * run what was best for so many. */
#define KT_SERVED_LOGIT_ROWS 16

/* Decode is what a person waits for token by token; prefill still counts in the choice of
 * layouts. */
#define KT_DECODE_SHARE 0.7

#define KT_PLAN_TIMES 13 /* 1 to 4096 rows */

typedef struct kt_plan_source {
    int tuned_cells;   /* m buckets answered by rows of the table */
    int untuned_cells; /* by the roofline or by the nearest shape */
    char layout[32];
    char bits[64]; /* the class of a planner that keeps bits, else "" */
    /* Expected of a call of 2^i rows (of one expert) in that layout, in ns: by the table, between
     * its rows, or by the roofline. */
    double time_ns[KT_PLAN_TIMES];
    char
        note[KT_ERR_SIZE]; /* why something fell back and the command that fixes it; "" = nothing */
} kt_plan_source;

/* Resolve one problem (m ignored) for `threads` threads into a dense map; max_m bounds the m
 * that will occur (KT_M_DENSE and above use the last entry). Chooses the layout that minimises
 * the time over the buckets, decode weighted by `decode_share` (0..1), then the best variant per
 * m inside it. Between buckets the candidate with the smaller interpolated time wins.
 * KT_E_UNSUPPORTED when no usable variant accepts the problem. */
kt_status kt_plan_resolve(kt_planner *p, const kt_problem *problem, int threads, int64_t max_m,
                          double decode_share, kt_choice_map *out, kt_plan_source *source,
                          kt_err *err);

/* Best usable variant of an op that has no weights to pack (norm, rope, router, encode, attn) for
 * problem->m rows: by the nearest row of the table, else by the roofline. Not in the totals. */
kt_status kt_plan_resolve_simple(kt_planner *p, const kt_problem *problem, int threads,
                                 kt_choice *out, kt_err *err);

/* Does the table have a row that this machine can use of the problem's op and formats? */
bool kt_planner_has_rows(const kt_planner *p, const kt_problem *problem);

/* How whole expert layers are run, from the table's plan cells. */
#define KT_LAYER_TOKENS 16
typedef struct kt_layer_plan {
    kt_moe_cuts cuts; /* n = 0: the default cut */
    int n_threads;    /* entries of threads; 0 = all threads always */
    struct {
        int64_t tokens;
        int threads;
    } threads[KT_LAYER_TOKENS]; /* of steps with so many tokens */
    int64_t spin_ns;            /* of an idle thread; 0 = the pool's default */
    int n_cells;                /* plan cells obeyed */
    int n_ignored;              /* of this problem that could not be */
    char note[KT_ERR_SIZE];     /* the first of those and why; "" = none */
} kt_layer_plan;

/* Of the experts' problem (m ignored) on a pool of `threads`. Cells of another problem or pool
 * size do not count; without any the plan is the defaults. */
void kt_plan_layer(const kt_planner *p, const kt_problem *experts, int threads, kt_layer_plan *out);

/* Threads for a step of so many tokens: those of the cell whose tokens are nearest by ratio,
 * else all. */
int kt_layer_plan_threads(const kt_layer_plan *plan, int64_t tokens, int all);

/* Choices of plan cells as text: "task_kib=192,tasks=4,first=number", "threads=2", "spin_us=50".
 * parse refuses other words and values out of range. */
char *kt_moe_cut_format(const kt_moe_cut *cut, char *out, size_t out_bytes);
kt_status kt_moe_cut_parse(const char *text, kt_moe_cut *out, kt_err *err);
kt_status kt_plan_number_parse(const char *text, const char *name, int64_t min, int64_t max,
                               int64_t *out, kt_err *err);

/* Of a layer_gain cell: the part of the predicted gain (in logarithms) that was there; NAN where
 * the prediction is below 1 % or twice the noise, so that the quotient would mean nothing. */
double kt_layer_realised(const kt_table_plan *gain, double aa_noise_p95);

/* Rows of experts whose layer gains less than 80 % of what they promise, and not surely
 * anything, answer with their default. From now on they count as they are: for measuring layers
 * again. */
void kt_planner_trust_rows(kt_planner *p);

/* The encoding of activations for problem->op and problem->weights (the rest is ignored), the
 * same for every m, so that a row's result does not depend on how many rows come with it. When
 * the table knows both (kt_registry_acts names the other one), the one whose rows of equal cells
 * took less time; when it knows one, that; else kt_acts_default.
 *
 * A planner that keeps bits needs the sizes too: of the encodings that the table knows equally
 * well it takes the one whose best class of bits costs less, KT_DECODE_SHARE of it in decode. */
kt_act_format kt_plan_acts(kt_planner *p, const kt_problem *problem);

/* The encoding where nothing was measured: the one that kt_registry_acts names, but the format's
 * own where machines of this microarchitecture are faster with it (plan_defaults.c). */
kt_act_format kt_acts_default(const kt_registry *r, const char *microarch, kt_op op,
                              kt_weight_format weights);
/* From now on kt_plan_acts answers with the format's own encoding, the one that loses least,
 * attention is not given to variants that round queries and weights to 8 bits (KT_NUM_ACTS8), nor
 * products to those that round weights once more (KT_NUM_REQUANT). */
void kt_planner_prefer_exact(kt_planner *p);

/* From now on a problem's answers keep to one class of bits (kt_variant.bits) for every m, and
 * neither the number of threads nor max_m changes which: the fastest class that has a usable
 * variant for every m, on as many threads as the machine has usable cores (those of the table
 * where there is one). Variants that are KT_BITS_UNSTABLE are not taken. Within the class the
 * fastest variant runs, as ever. */
void kt_planner_keep_bits(kt_planner *p);
bool kt_planner_keeps_bits(const kt_planner *p);

/* A class of bits that a deterministic plan could keep, and what it costs against the fastest
 * variant of any class, unstable ones included: mean over the decode and over the prefill
 * buckets (0.1 = 10 % longer). */
typedef struct kt_class_cost {
    const char *bits, *layout; /* the variants' */
    double decode, prefill;
    int n_measured; /* buckets with a row that lists the class; elsewhere it is estimated */
} kt_class_cost;

#define KT_MAX_CLASSES 8

/* The classes that have a usable variant for every m, those that no row knows left out: first
 * the one that a deterministic plan keeps, then by what they cost. Whether the planner keeps
 * bits does not matter. */
kt_status kt_plan_classes(kt_planner *p, const kt_problem *problem, double decode_share,
                          kt_class_cost out[KT_MAX_CLASSES], int *n, kt_err *err);

/* m buckets over all kt_plan_resolve calls so far, for the status line of `kt serve`. */
typedef struct kt_plan_totals {
    int tuned;     /* answered by a row of their own */
    int between;   /* no row, but tuned neighbours answer for them */
    int estimated; /* by the nearest shape or by the roofline */
} kt_plan_totals;

kt_plan_totals kt_planner_totals(const kt_planner *p);

/* Where a table for this machine is looked for, first hit wins: $KT_TABLE;
 * $XDG_DATA_HOME/kt/<class>/<model>.kttable.json (default ~/.local/share); then
 * <source tree>/results/<class>/<model>.kttable.json as an offer when the fingerprint matches; then
 * that of a like machine. out receives the path, or "" when there is none.
 *
 * <model> is the name's last part. A name that is no plain file name (Unicode, over 100 bytes) has
 * a digest of itself behind it. Where a table of the same name is known to be of another shape_id
 * (kt_model_shape_id; 0 = not known, any), <model> is the name and the shape: models of different
 * matrices never share a file. */
void kt_table_locate(const kt_fingerprint *machine, const char *model_name, uint64_t shape_id,
                     char *out, size_t out_bytes);
/* Of the classes in folder `results` that differ from this machine's in cores and memory only, the
 * table of the one whose cores are nearest by ratio. */
void kt_table_of_like_machine(const char *results, const kt_fingerprint *machine,
                              const char *model_name, uint64_t shape_id, char *out,
                              size_t out_bytes);
/* Where the tuner writes by default (folders are made). */
kt_status kt_table_default_path(const kt_fingerprint *machine, const char *model_name,
                                uint64_t shape_id, char *out, size_t out_bytes, kt_err *err);

#endif
