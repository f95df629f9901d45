/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_job.h"

#include <math.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"

/* Queries of the smallest part of a kv head's heads. Each part loads the keys for itself: 16
 * queries of 576 and 512 cost up to a sixth more each than 128 (int_dot__avx512vnni; less with the
 * others). Threads that would have no task take parts of LEAST_QUERIES: two of four side by side
 * take 0.56 to 0.76 of the time of one of eight, two of two as long as one of four
 * (bf16_online__avx2). To a tile one query is as long as 16. */
#define PART_QUERIES 16
#define LEAST_QUERIES 4

/* Queries of a block of rows: as many of these as leave so many tasks to each thread. Those of a
 * tile, at most LARGEST_TILE, share each K and V load; a variant that has several tiles to go asks
 * for the queries of the next. */
#define TILE_QUERIES 64
#define LARGEST_TILE 128
#define LARGEST_BLOCK 1024
#define TASKS_PER_THREAD 16

/* The problem of tasks that do one of `parts` of each kv head's query heads. */
static kt_problem problem_of_parts(const kt_problem *p, int64_t parts) {
    kt_problem part = *p;
    part.kv_heads *= parts;
    return part;
}

static bool can_halve(const kt_problem *p, int64_t parts, int64_t least) {
    int64_t queries = p->n / p->kv_heads / parts;
    return queries % 2 == 0 && queries / 2 >= least;
}

static size_t scratch_bytes(const kt_choice *choice, const kt_problem *problem) {
    const kt_variant *v = choice->variant;
    size_t most = 0;

    if (!v->workspace_bytes) return 0;
    for (int64_t parts = 1;; parts *= 2) {
        kt_problem p = problem_of_parts(problem, parts);
        size_t bytes = v->workspace_bytes(&p, &choice->config);
        if (bytes > most) most = bytes;
        if (!can_halve(problem, parts, LEAST_QUERIES)) break;
    }
    return (most + 63) / 64 * 64;
}

const kt_choice *kt_attn_choose(const kt_attn_choices *choices, const kt_choice *standard,
                                int64_t rows, int64_t keys) {
    const kt_choice *best = standard;
    double least = INFINITY;

    for (int i = 0; choices && i < choices->n; i++) {
        const double d = fabs(log((double)rows / (double)choices->at[i].rows)) +
                         fabs(log((double)keys / (double)choices->at[i].keys));
        if (d >= least) continue;
        least = d;
        best = &choices->at[i].choice;
    }
    return best;
}

const kt_choice *kt_attn_largest(const kt_attn_choices *choices, const kt_choice *standard,
                                 const kt_problem *problem) {
    const kt_choice *best = standard;

    for (int i = 0; choices && i < choices->n; i++)
        if (scratch_bytes(&choices->at[i].choice, problem) > scratch_bytes(best, problem))
            best = &choices->at[i].choice;
    return best;
}

/* Whole tiles: the rest of a block would turn its keys for a row or two. */
static int64_t rows_of_block(const kt_problem *p, int64_t queries) {
    const int64_t group = p->n / p->kv_heads;
    const int64_t tile = queries < LARGEST_TILE ? queries : LARGEST_TILE;
    return tile > group ? queries / tile * (tile / group) : 1;
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
    job->max_cells = KT_ATTN_SPLIT_ROWS * chunks_of(max_context);
    job->head_parts = 1;
    job->joined = 0;
    job->block_rows = rows_of_block(&job->problem, TILE_QUERIES);
    return KT_OK;
}

static kt_attn_span *spans_of(kt_attn_job *j, int64_t *n) {
    *n = j->spans ? j->n_spans : 1;
    if (j->spans) return j->spans;
    j->whole.rows = j->rows;
    return &j->whole;
}

static int64_t blocks(const kt_attn_job *j, const kt_attn_span *s) {
    return (s->rows + j->block_rows - 1) / j->block_rows;
}

/* Chunks with a key that one of the span's rows sees. */
static void find_chunks(const kt_attn_job *j, kt_attn_span *s) {
    int64_t first = INT64_MAX, last = 0;

    for (int64_t r = s->first_row; r < s->first_row + s->rows; r++) {
        int64_t low = kt_attn_first_key(&j->problem, j->position[r]);
        if (j->position[r] > last) last = j->position[r];
        if (low < first) first = low;
    }
    s->choice = kt_attn_choose(j->choices, j->choice, s->rows, last + 1);
    s->first_chunk = s->rows ? first / KT_ATTN_CHUNK : 0;
    s->chunks = chunks_of(last + 1) - s->first_chunk;
}

/* Would cutting contexts even out what threads have to do, and is there room for the sums? Also
 * where spans share out evenly: a core beside which others work, or a slower kind of core, would
 * keep all waiting for half a head of a long context. */
static bool wants_split(const kt_attn_job *j, const kt_attn_span *s, int64_t n, int64_t tasks,
                        int n_threads) {
    int64_t cells = 0, most = 1;

    for (int64_t i = 0; i < n; i++) {
        if (s[i].rows > KT_ATTN_SPLIT_ROWS || s[i].chunks < 2) continue;
        cells += s[i].rows * s[i].chunks;
        if (s[i].chunks > most) most = s[i].chunks;
    }
    return most > 1 && cells <= j->max_cells && n_threads > 1 && tasks < 4 * (int64_t)n_threads;
}

/* Blocks of rows as large as leaves enough of them. Tasks, if nothing else is cut. */
static int64_t cut_rows(kt_attn_job *j, const kt_attn_span *s, int64_t n, int n_threads) {
    int64_t tasks;

    for (int64_t queries = LARGEST_BLOCK;; queries /= 2) {
        j->block_rows = rows_of_block(&j->problem, queries);
        tasks = 0;
        for (int64_t i = 0; i < n; i++) tasks += j->problem.kv_heads * blocks(j, &s[i]);
        if (queries == TILE_QUERIES || tasks >= TASKS_PER_THREAD * (int64_t)n_threads) return tasks;
    }
}

/* The smallest part worth a thread that would have none. */
static int64_t least_queries(const kt_attn_span *s, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (s[i].choice->variant->isa & KT_ISA_AMXBF16) return PART_QUERIES;
    return LEAST_QUERIES;
}

/* Cut the context where heads and blocks of rows are few to a thread; then heads. */
int64_t kt_attn_job_prepare(void *job, int n_threads) {
    kt_attn_job *j = job;
    const kt_problem *p = &j->problem;
    int64_t n, tasks, least, cells = 0;
    kt_attn_span *s = spans_of(j, &n);
    bool split;

    for (int64_t i = 0; i < n; i++) find_chunks(j, &s[i]);
    least = least_queries(s, n);
    tasks = cut_rows(j, s, n, n_threads);
    split = wants_split(j, s, n, tasks, n_threads);
    tasks = j->joined = 0;
    for (int64_t i = 0; i < n; i++) {
        s[i].split = split && s[i].rows <= KT_ATTN_SPLIT_ROWS && s[i].chunks > 1;
        s[i].first_task = tasks;
        s[i].first_joined = j->joined;
        s[i].first_cell = cells;
        tasks += p->kv_heads * (s[i].split ? s[i].chunks : blocks(j, &s[i]));
        if (!s[i].split) continue;
        cells += s[i].rows * s[i].chunks;
        j->joined += s[i].rows;
    }
    j->head_parts = 1;
    while (n_threads > 1 && tasks * j->head_parts < 2 * (int64_t)n_threads &&
           can_halve(p, j->head_parts, PART_QUERIES))
        j->head_parts *= 2;
    while (2 * tasks * j->head_parts <= n_threads && can_halve(p, j->head_parts, least))
        j->head_parts *= 2;
    return tasks * j->head_parts;
}

/* Part `part` of a kv head's query heads, all rows of the span; *problem must live as long as the
 * call. Rows of the call are numbered from the span's first. */
static kt_attn_call call_of(const kt_attn_job *j, const kt_attn_span *s, kt_problem *problem,
                            int64_t kv_head, int64_t part, int tid) {
    size_t item = kt_attn_item_bytes(j->problem.weights);
    int64_t v_stride = j->ldv ? j->v_head_stride : j->head_stride;
    bool scaled = kt_attn_has_scales(j->problem.weights);

    *problem = problem_of_parts(&j->problem, j->head_parts);
    return (kt_attn_call){.problem = problem,
                          .config = &s->choice->config,
                          .q = j->q + s->first_row * j->ldq,
                          .ldq = j->ldq,
                          .k = (const char *)j->k + (size_t)(kv_head * j->head_stride) * item,
                          .v = (const char *)j->v + (size_t)(kv_head * v_stride) * item,
                          .k_scale = scaled ? j->k_scale + kv_head * j->scale_stride : NULL,
                          .v_scale = scaled ? j->v_scale + kv_head * j->scale_stride : NULL,
                          .page = s->page,
                          .page_stride = j->page_stride,
                          .scale_page_stride = j->scale_page_stride,
                          .ldkv = j->ldkv,
                          .ldv = j->ldv,
                          .kv_head = kv_head * j->head_parts + part,
                          .scale = j->scale,
                          .sink = j->sink,
                          .position = j->position + s->first_row,
                          .row_end = s->rows,
                          .out = j->out + s->first_row * j->ldo,
                          .ldo = j->ldo,
                          .scratch = (char *)j->workspace + j->scratch_bytes * (size_t)tid};
}

/* Parts of the heads are next to each other: they read the same keys at about the same time. unit:
 * of the span. */
static void run_chunk(const kt_attn_job *j, const kt_attn_span *s, int64_t unit, int64_t part,
                      int tid) {
    const kt_problem *p = &j->problem;
    int64_t width = p->n * kt_attn_value_size(p), cell = s->first_cell + unit % s->chunks;
    kt_problem problem;
    kt_attn_call c = call_of(j, s, &problem, unit / s->chunks, part, tid);

    c.key_begin = (s->first_chunk + unit % s->chunks) * KT_ATTN_CHUNK;
    c.key_end = c.key_begin + KT_ATTN_CHUNK;
    c.out = j->part + cell * width;
    c.ldo = s->chunks * width;
    c.stats = j->stats + cell * 2 * p->n;
    c.ldstats = s->chunks * 2 * p->n;
    s->choice->variant->attn(&c);
}

/* Later rows see more keys: the longest blocks of a head go first, so that the last tasks are
 * short. */
static void run_block(const kt_attn_job *j, const kt_attn_span *s, int64_t unit, int64_t part,
                      int tid) {
    int64_t n = blocks(j, s), block = n - 1 - unit % n;
    kt_problem problem;
    kt_attn_call c = call_of(j, s, &problem, unit / n, part, tid);

    c.row_begin = block * j->block_rows;
    if (c.row_begin + j->block_rows < s->rows) c.row_end = c.row_begin + j->block_rows;
    s->choice->variant->attn(&c);
}

/* The span of a task, or of a row to join: the last one that does not begin behind it. Those
 * without rows to join begin where the next one does. */
static const kt_attn_span *span_at(const kt_attn_job *j, int64_t at, bool is_joined) {
    const kt_attn_span *s = j->spans ? j->spans : &j->whole;
    int64_t low = 0, high = j->spans ? j->n_spans : 1;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if ((is_joined ? s[middle].first_joined : s[middle].first_task) <= at)
            low = middle;
        else
            high = middle;
    }
    return s + low;
}

void kt_attn_job_run(void *job, int64_t begin, int64_t end, int tid) {
    const kt_attn_job *j = job;
    for (int64_t task = begin; task < end; task++) {
        const kt_attn_span *s = span_at(j, task / j->head_parts, false);
        int64_t unit = task / j->head_parts - s->first_task, part = task % j->head_parts;
        if (s->split)
            run_chunk(j, s, unit, part, tid);
        else
            run_block(j, s, unit, part, tid);
    }
}

int64_t kt_attn_job_merge_count(void *job, int n_threads) {
    const kt_attn_job *j = job;
    (void)n_threads;
    return j->joined * j->problem.n;
}

void kt_attn_job_merge(void *job, int64_t begin, int64_t end, int tid) {
    const kt_attn_job *j = job;
    const kt_problem *p = &j->problem;
    int64_t d = kt_attn_value_size(p), width = p->n * d;

    (void)tid;
    for (int64_t i = begin; i < end; i++) {
        const kt_attn_span *s = span_at(j, i / p->n, true);
        int64_t in_span = i / p->n - s->first_joined, head = i % p->n;
        int64_t row = s->first_row + in_span;
        int64_t chunk = kt_attn_first_key(p, j->position[row]) / KT_ATTN_CHUNK;
        int64_t cell = s->first_cell + in_span * s->chunks + chunk - s->first_chunk;
        kt_attn_merge(j->part + cell * width + head * d, width, j->stats + (cell * p->n + head) * 2,
                      2 * p->n, chunks_of((int64_t)j->position[row] + 1) - chunk, d,
                      j->sink ? j->sink + head : NULL, j->out + row * j->ldo + head * d);
    }
}

void kt_attn_job_phases(kt_attn_job *job, kt_phase phases[KT_ATTN_PHASES]) {
    phases[0] = (kt_phase){.prepare = kt_attn_job_prepare, .run = kt_attn_job_run, .arg = job};
    phases[1] = (kt_phase){
        .prepare = kt_attn_job_merge_count, .run = kt_attn_job_merge, .arg = job, .grain = 8};
}
