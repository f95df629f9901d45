/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_job.h"

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"

/* Queries of the smallest part of a kv head's heads. Each part loads the keys for itself: 16
 * queries of 576 and 512 cost up to a sixth more each than 128 (int_dot__avx512vnni; less with the
 * others). */
#define PART_QUERIES 16

/* The problem of tasks that do one of `parts` of each kv head's query heads. */
static kt_problem problem_of_parts(const kt_problem *p, int64_t parts) {
    kt_problem part = *p;
    part.kv_heads *= parts;
    return part;
}

static bool can_halve(const kt_problem *p, int64_t parts) {
    int64_t queries = p->n / p->kv_heads / parts;
    return queries % 2 == 0 && queries / 2 >= PART_QUERIES;
}

static size_t scratch_bytes(const kt_choice *choice, const kt_problem *problem) {
    const kt_variant *v = choice->variant;
    size_t most = 0;

    if (!v->workspace_bytes) return 0;
    for (int64_t parts = 1;; parts *= 2) {
        kt_problem p = problem_of_parts(problem, parts);
        size_t bytes = v->workspace_bytes(&p, &choice->config);
        if (bytes > most) most = bytes;
        if (!can_halve(problem, parts)) break;
    }
    return (most + 63) / 64 * 64;
}

static int64_t chunks_of(int64_t context) {
    return (context + KT_ATTN_CHUNK - 1) / KT_ATTN_CHUNK;
}

/* Bytes of sums and of stats of KT_ATTN_SPLIT_ROWS rows, multiples of 64. */
static int part_bytes(const kt_problem *p, int64_t max_context, uint64_t *sums, uint64_t *stats) {
    uint64_t cells, width;
    int bad = kt_mul_overflow((uint64_t)chunks_of(max_context), KT_ATTN_SPLIT_ROWS * 64, &cells);

    bad |= kt_mul_overflow((uint64_t)p->n, (uint64_t)kt_attn_value_size(p) * sizeof(float), &width);
    bad |= kt_mul_overflow(cells, width / 64 + 1, sums);
    bad |= kt_mul_overflow(cells, (uint64_t)p->n * 2 * sizeof(float) / 64 + 1, stats);
    return bad;
}

size_t kt_attn_job_bytes(const kt_choice *choice, const kt_problem *problem, int64_t max_context,
                         int n_threads) {
    uint64_t sums, stats, scratch, total;

    if (max_context < 1 || max_context > INT32_MAX || n_threads < 1) return 0;
    if (part_bytes(problem, max_context, &sums, &stats)) return 0;
    if (kt_mul_overflow(scratch_bytes(choice, problem), (uint64_t)n_threads, &scratch)) return 0;
    if (kt_add_overflow(sums, stats, &total) || kt_add_overflow(total, scratch, &total)) return 0;
    return (size_t)total;
}

kt_status kt_attn_job_init(kt_attn_job *job, int64_t max_context, int n_threads, void *workspace,
                           size_t workspace_bytes, kt_err *err) {
    size_t need = kt_attn_job_bytes(job->choice, &job->problem, max_context, n_threads);
    int64_t group = job->problem.n / job->problem.kv_heads;
    uint64_t sums, stats;

    if (need == 0 || need > workspace_bytes)
        return kt_fail(err, KT_E_INVALID,
                       "attention: workspace of %zu bytes for a context of %lld on %d threads, "
                       "expected %zu",
                       workspace_bytes, (long long)max_context, n_threads, need);
    part_bytes(&job->problem, max_context, &sums, &stats);
    job->workspace = workspace;
    job->scratch_bytes = scratch_bytes(job->choice, &job->problem);
    job->part = (float *)(void *)((char *)workspace + job->scratch_bytes * (size_t)n_threads);
    job->stats = (float *)(void *)((char *)job->part + sums);
    job->max_chunks = chunks_of(max_context);
    job->first_chunk = 0;
    job->chunks = 1;
    job->head_parts = 1;
    job->split = false;
    /* 64 queries share each K and V load and leave enough tasks to share out. */
    job->block_rows = 64 / group > 0 ? 64 / group : 1;
    return KT_OK;
}

static int64_t blocks(const kt_attn_job *j) {
    return (j->rows + j->block_rows - 1) / j->block_rows;
}

/* Cut the context where heads and blocks of rows would leave some threads idle at the end; then
 * heads. */
int64_t kt_attn_job_prepare(void *job, int n_threads) {
    kt_attn_job *j = job;
    const kt_problem *p = &j->problem;
    int64_t tasks = p->kv_heads * blocks(j), first = INT64_MAX, last = 0;

    for (int64_t r = 0; r < j->rows; r++) {
        int64_t low = kt_attn_first_key(p, j->position[r]);
        if (j->position[r] > last) last = j->position[r];
        if (low < first) first = low;
    }
    j->first_chunk = j->rows ? first / KT_ATTN_CHUNK : 0;
    j->chunks = chunks_of(last + 1) - j->first_chunk;
    j->split = j->rows <= KT_ATTN_SPLIT_ROWS && j->chunks > 1 && tasks < 4 * (int64_t)n_threads &&
               tasks % n_threads != 0;
    if (j->split) tasks = p->kv_heads * j->chunks;
    j->head_parts = 1;
    while (n_threads > 1 && tasks * j->head_parts < 2 * (int64_t)n_threads &&
           can_halve(p, j->head_parts))
        j->head_parts *= 2;
    return tasks * j->head_parts;
}

/* Part `part` of a kv head's query heads; *problem must live as long as the call. */
static kt_attn_call call_of(const kt_attn_job *j, kt_problem *problem, int64_t kv_head,
                            int64_t part, int tid) {
    size_t item = kt_attn_item_bytes(j->problem.weights);
    int64_t v_stride = j->ldv ? j->v_head_stride : j->head_stride;
    bool scaled = kt_attn_has_scales(j->problem.weights);

    *problem = problem_of_parts(&j->problem, j->head_parts);
    return (kt_attn_call){.problem = problem,
                          .config = &j->choice->config,
                          .q = j->q,
                          .ldq = j->ldq,
                          .k = (const char *)j->k + (size_t)(kv_head * j->head_stride) * item,
                          .v = (const char *)j->v + (size_t)(kv_head * v_stride) * item,
                          .k_scale = scaled ? j->k_scale + kv_head * j->scale_stride : NULL,
                          .v_scale = scaled ? j->v_scale + kv_head * j->scale_stride : NULL,
                          .ldkv = j->ldkv,
                          .ldv = j->ldv,
                          .kv_head = kv_head * j->head_parts + part,
                          .scale = j->scale,
                          .position = j->position,
                          .row_end = j->rows,
                          .out = j->out,
                          .ldo = j->ldo,
                          .scratch = (char *)j->workspace + j->scratch_bytes * (size_t)tid};
}

/* Parts of the heads are next to each other: they read the same keys at about the same time. */
static void run_chunk(const kt_attn_job *j, int64_t task, int tid) {
    const kt_problem *p = &j->problem;
    int64_t width = p->n * kt_attn_value_size(p);
    int64_t part = task % j->head_parts, unit = task / j->head_parts;
    int64_t chunk = j->first_chunk + unit % j->chunks;
    kt_problem problem;
    kt_attn_call c = call_of(j, &problem, unit / j->chunks, part, tid);

    c.key_begin = chunk * KT_ATTN_CHUNK;
    c.key_end = c.key_begin + KT_ATTN_CHUNK;
    c.out = j->part + chunk * width;
    c.ldo = j->max_chunks * width;
    c.stats = j->stats + chunk * 2 * p->n;
    c.ldstats = j->max_chunks * 2 * p->n;
    j->choice->variant->attn(&c);
}

/* Later rows see more keys: the longest blocks of a head go first, so that the last tasks are
 * short. */
static void run_block(const kt_attn_job *j, int64_t task, int tid) {
    int64_t part = task % j->head_parts, unit = task / j->head_parts;
    int64_t n = blocks(j), block = n - 1 - unit % n;
    kt_problem problem;
    kt_attn_call c = call_of(j, &problem, unit / n, part, tid);

    c.row_begin = block * j->block_rows;
    if (c.row_begin + j->block_rows < j->rows) c.row_end = c.row_begin + j->block_rows;
    j->choice->variant->attn(&c);
}

void kt_attn_job_run(void *job, int64_t begin, int64_t end, int tid) {
    const kt_attn_job *j = job;
    for (int64_t task = begin; task < end; task++) {
        if (j->split)
            run_chunk(j, task, tid);
        else
            run_block(j, task, tid);
    }
}

int64_t kt_attn_job_merge_count(void *job, int n_threads) {
    const kt_attn_job *j = job;
    (void)n_threads;
    return j->split ? j->rows * j->problem.n : 0;
}

void kt_attn_job_merge(void *job, int64_t begin, int64_t end, int tid) {
    const kt_attn_job *j = job;
    const kt_problem *p = &j->problem;
    int64_t d = kt_attn_value_size(p), width = p->n * d;

    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / p->n, head = i % p->n;
        int64_t chunk = kt_attn_first_key(p, j->position[row]) / KT_ATTN_CHUNK;
        int64_t first = row * j->max_chunks + chunk;
        kt_attn_merge(j->part + first * width + head * d, width,
                      j->stats + (first * p->n + head) * 2, 2 * p->n,
                      chunks_of((int64_t)j->position[row] + 1) - chunk, d,
                      j->out + row * j->ldo + head * d);
    }
}

void kt_attn_job_phases(kt_attn_job *job, kt_phase phases[KT_ATTN_PHASES]) {
    phases[0] = (kt_phase){.prepare = kt_attn_job_prepare, .run = kt_attn_job_run, .arg = job};
    phases[1] = (kt_phase){
        .prepare = kt_attn_job_merge_count, .run = kt_attn_job_merge, .arg = job, .grain = 8};
}
