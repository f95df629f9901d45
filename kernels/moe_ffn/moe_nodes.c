/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/moe_ffn/moe_nodes.h"

#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/p64.h"

#define REDUCE_TASK ((int64_t)4096)  /* floats of out per task: some microseconds */
#define REDUCE_ALONE ((int64_t)8192) /* floats that one thread adds before others would be there */

/* --- cutting -------------------------------------------------------------------------------- */

static int64_t block_of(const kt_moe_layer *whole) {
    kt_problem half = kt_moe_down_half(whole);
    int64_t down = kt_p64_k_multiple(half.weights);

    if (half.weights == KT_W_FP8_B128) down = 128; /* its scales' blocks */
    return down > 64 ? down : 64;
}

/* Blocks go one at a time to the node that is furthest behind its share, the first of equals. */
kt_status kt_moe_cut_channels(const kt_moe_layer *whole, const double *share, int n_nodes,
                              int64_t *begin, kt_err *err) {
    const int64_t block = block_of(whole), n = whole->problem.n;
    const int64_t blocks = (n + block - 1) / block;
    int64_t count[KT_MOE_MAX_NODES];

    if (n_nodes < 1 || n_nodes > KT_MOE_MAX_NODES || blocks < n_nodes)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%lld intermediate channels in blocks of %lld over %d nodes: expected a "
                       "block for each of 1 to %d nodes",
                       (long long)n, (long long)block, n_nodes, KT_MOE_MAX_NODES);
    for (int i = 0; i < n_nodes; i++) {
        if (!(share[i] > 0))
            return kt_fail(err, KT_E_INVALID, "node %d has a share of %g, expected more than 0", i,
                           share[i]);
        count[i] = 1;
    }
    for (int64_t left = blocks - n_nodes; left > 0; left--) {
        int poorest = 0;
        for (int i = 1; i < n_nodes; i++)
            if ((double)(count[i] + 1) / share[i] < (double)(count[poorest] + 1) / share[poorest])
                poorest = i;
        count[poorest]++;
    }
    begin[0] = 0;
    for (int i = 0; i < n_nodes; i++) {
        begin[i + 1] = begin[i] + count[i] * block;
        if (begin[i + 1] > n) begin[i + 1] = n; /* the last block may be short */
    }
    return KT_OK;
}

kt_moe_layer kt_moe_slice_layer(const kt_moe_layer *whole, int64_t begin, int64_t end,
                                const void *const *experts) {
    kt_moe_layer part = *whole;

    part.problem.n = end - begin;
    part.experts = experts;
    if (part.bias.gate) part.bias.gate += begin, part.bias.up += begin;
    if (begin > 0) part.bias.down = NULL; /* added once, by the first */
    return part;
}

/* A panel is a stream of inputs, 64 rows abreast; what follows the codes are scales of the rows, or of
 * blocks of inputs and rows. */
static size_t slice_panel(kt_weight_format format, int64_t n, const uint8_t *panel, int64_t begin,
                          int64_t end, uint8_t *dst) {
    const int64_t span = kt_p64_k_multiple(format);
    const size_t bytes = kt_p64_panel_bytes(format, end - begin);
    size_t codes = bytes, per_span, tail;

    if (format == KT_W_INT8_CHANNEL || format == KT_W_FP8_CHANNEL || format == KT_W_FP8_B128 ||
        format == KT_W_MXFP8)
        codes = KT_P64_ROWS * (size_t)(end - begin);
    codes -= kt_p64_tail_bytes(kt_p64_spec_of(format));
    tail = bytes - codes;
    per_span = codes / (size_t)((end - begin) / span);
    memcpy(dst, panel + (size_t)(begin / span) * per_span, codes);
    if (format == KT_W_FP8_B128) {
        memset(dst + codes, 0, tail);
        memcpy(dst + codes, panel + KT_P64_ROWS * n + begin / 128 * 8,
               (size_t)((end - begin + 127) / 128 * 8));
    } else if (format == KT_W_MXFP8) {
        memcpy(dst + codes, panel + KT_P64_ROWS * n + begin / 32 * KT_P64_ROWS, tail);
    } else if (tail) {
        memcpy(dst + codes, panel + kt_p64_panel_bytes(format, n) - tail, tail);
    }
    return bytes;
}

void kt_moe_slice_pack(const kt_moe_layer *whole, const void *expert, int64_t begin, int64_t end,
                       void *dst) {
    const kt_problem *q = &whole->problem, half = kt_moe_down_half(whole);
    const uint8_t *down = (const uint8_t *)expert + kt_moe_down_offset(whole);
    const size_t panel_bytes = kt_p64_panel_bytes(half.weights, q->n);
    const size_t gate_up = kt_p64_panel_bytes(q->weights, q->k) * (size_t)((end - begin) / 32);
    uint8_t *to = dst;

    memcpy(to, kt_p64_gate_up(q, expert, begin / 32), gate_up);
    to += gate_up;
    for (int64_t p = 0; p < kt_p64_panels(q->k); p++)
        to += slice_panel(half.weights, q->n, down + (size_t)p * panel_bytes, begin, end, to);
}

/* --- running -------------------------------------------------------------------------------- */

static size_t partial_bytes(const kt_moe_layer *layer, int64_t max_tokens) {
    uint64_t bytes;

    if (max_tokens < 1 ||
        kt_mul_overflow((uint64_t)max_tokens, (uint64_t)layer->problem.k, &bytes) ||
        kt_mul_overflow(bytes, sizeof(float), &bytes) || bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return ((size_t)bytes + 63) / 64 * 64;
}

/* The partial outputs, then the workspace of the node's job. */
size_t kt_moe_nodes_bytes(const kt_moe_layer *layer, int64_t max_tokens, int n_threads) {
    size_t partial = partial_bytes(layer, max_tokens);
    size_t job = kt_moe_workspace_bytes(layer, max_tokens, n_threads);

    return partial > SIZE_MAX - job ? SIZE_MAX : partial + job;
}

kt_status kt_moe_nodes_init(kt_moe_nodes *s, int64_t max_tokens, kt_err *err) {
    s->n_threads = 0;
    if (s->n_nodes < 1 || s->n_nodes > KT_MOE_MAX_NODES)
        return kt_fail(err, KT_E_INVALID, "moe nodes: %d of at most %d", s->n_nodes,
                       KT_MOE_MAX_NODES);
    for (int i = 0; i < s->n_nodes; i++) {
        if (s->threads[i] < 1)
            return kt_fail(err, KT_E_INVALID, "moe nodes: node %d has %d threads", i,
                           s->threads[i]);
        s->n_threads += s->threads[i];
    }
    for (int i = 0; i < s->n_nodes; i++) {
        const kt_moe_layer *layer = s->layer[i];
        size_t partial = partial_bytes(layer, max_tokens);
        if (layer->problem.k != s->layer[0]->problem.k || partial == SIZE_MAX)
            return kt_fail(err, KT_E_INVALID, "moe nodes: hidden %lld on node %d, %lld on node 0",
                           (long long)layer->problem.k, i, (long long)s->layer[0]->problem.k);
        s->job[i] = (kt_moe_job){.layer = layer,
                                 .out = s->workspace[i],
                                 .ldo = layer->problem.k,
                                 .workspace = (char *)s->workspace[i] + partial};
        KT_TRY(kt_moe_job_init(&s->job[i], max_tokens, s->n_threads,
                               kt_moe_workspace_bytes(layer, max_tokens, s->n_threads), err));
        kt_moe_job_phases(&s->job[i], s->part[i]);
    }
    return KT_OK;
}

static int node_of(const kt_moe_nodes *s, int64_t thread) {
    int node = 0;
    while (node + 1 < s->n_nodes && thread >= s->threads[node]) thread -= s->threads[node++];
    return node;
}

/* How many threads to cut a node's work for. A node of one thread has neighbours to share with at the end, and
 * they encode their tokens at the same time: cut for one, the work of all would wait for this thread. */
static int cut_threads(const kt_moe_nodes *s, int node) {
    return s->threads[node] == 1 && s->n_nodes > 1 ? 2 : s->threads[node];
}

/* The pool gives every thread the same number of tasks in a row. So that these are its node's, all threads get as
 * many slots as the busiest needs, and a node's tasks are spread over its threads' slots. */
static int64_t prepare(void *arg, int n_threads) {
    struct kt_nodes_phase *p = arg;
    kt_moe_nodes *s = p->nodes;

    (void)n_threads;
    p->per_thread = 0;
    p->grain = 1;
    for (int i = 0; i < s->n_nodes; i++) {
        const kt_phase *part = &s->part[i][p->phase];
        kt_moe_job *job = &s->job[i];
        int64_t each;
        job->x = s->x, job->ldx = s->ldx, job->tokens = s->tokens;
        job->expert_id = s->expert_id, job->route_weight = s->route_weight;
        p->tasks[i] = part->prepare(job, cut_threads(s, i));
        each = (p->tasks[i] + s->threads[i] - 1) / s->threads[i];
        if (each > p->per_thread) p->per_thread = each;
        if (part->grain_at && *part->grain_at > p->grain) p->grain = *part->grain_at;
    }
    return p->per_thread * s->n_threads;
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const struct kt_nodes_phase *p = arg;
    const kt_moe_nodes *s = p->nodes;

    for (int64_t slot = begin, stop; slot < end; slot = stop) {
        int node = node_of(s, slot / p->per_thread);
        int64_t slots = p->per_thread * s->threads[node], first = 0, task, last;
        for (int i = 0; i < node; i++) first += p->per_thread * s->threads[i];
        stop = end < first + slots ? end : first + slots;
        task = (slot - first) * p->tasks[node] / slots;
        last = (stop - first) * p->tasks[node] / slots;
        if (task < last) s->part[node][p->phase].run(s->part[node][p->phase].arg, task, last, tid);
    }
}

static void reduce(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_moe_nodes *s = arg;
    const int64_t k = s->layer[0]->problem.k, all = s->tokens * k;
    const int64_t last = end * REDUCE_TASK < all ? end * REDUCE_TASK : all;

    (void)tid;
    for (int64_t i = begin * REDUCE_TASK; i < last;) {
        const int64_t left = k - i % k, run_length = left < last - i ? left : last - i;
        float *out = s->out + i / k * s->ldo + i % k;
        if (!s->accumulate) memset(out, 0, sizeof *out * (size_t)run_length);
        for (int node = 0; node < s->n_nodes; node++) {
            const float *part = s->job[node].out + i;
            for (int64_t j = 0; j < run_length; j++) out[j] += part[j];
        }
        i += run_length;
    }
}

/* Tasks are runs of REDUCE_TASK elements of out, counted without gaps. The few of a decode step are added at
 * once: a phase of their own would cost one more meeting of all threads. */
static int64_t reduce_prepare(void *arg, int n_threads) {
    const kt_moe_nodes *s = arg;
    const int64_t all = s->tokens * s->layer[0]->problem.k;
    const int64_t tasks = (all + REDUCE_TASK - 1) / REDUCE_TASK;

    (void)n_threads;
    if (all > REDUCE_ALONE) return tasks;
    reduce(arg, 0, tasks, 0);
    return 0;
}

void kt_moe_nodes_phases(kt_moe_nodes *s, kt_phase phases[KT_MOE_NODES_PHASES]) {
    for (int i = 0; i < KT_MOE_PHASES; i++) {
        s->phase[i] = (struct kt_nodes_phase){.nodes = s, .phase = i};
        phases[i] = (kt_phase){
            .prepare = prepare, .run = run, .arg = &s->phase[i], .grain_at = &s->phase[i].grain};
    }
    phases[KT_MOE_PHASES] = (kt_phase){.prepare = reduce_prepare, .run = reduce, .arg = s};
}
