/* Feed-forward: the experts that rows were routed to, or one that all go to.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "runtime/exec/joined.h"
#include "runtime/exec/step.h"

/* A node's: the job that it shares, and its experts, with the layer's shared one where both run
 * together (joined.h). */
typedef struct experts_state {
    kt_step_ffn *ffn;
    const kt_moe_layer *layer;       /* whole */
    const kt_moe_layer *node_layers; /* of each memory node; NULL = not split */
    const kt_node *shared;           /* that runs with the routed ones, or NULL */
    bool is_split;                   /* a device has some of the experts */
    bool is_apart; /* and the sum of both: what the CPU has comes to step->cold_sum */
} experts_state;

/* ---- setting up ---- */

/* The experts of `layer` and, behind them, that of `shared`. */
static int join(kt_step *s, const kt_moe_layer *layer, const kt_moe_layer *shared,
                kt_moe_layer *out) {
    const size_t n = (size_t)layer->problem.experts;
    const void **experts = kt_step_alloc(s, (n + 1) * sizeof *experts);

    if (!experts) return 0;
    memcpy(experts, layer->experts, n * sizeof *experts);
    experts[n] = shared->experts[0];
    *out = *layer;
    out->experts = experts;
    out->problem.experts++;
    out->problem.topk++;
    return 1;
}

static kt_status join_layers(kt_exec_node *n, experts_state *state, kt_err *err) {
    kt_step *s = n->step;
    const kt_loaded *routed = n->weight, *shared = kt_weights_at(s->weights, state->shared->weight);
    const int n_nodes = routed->node_experts ? s->nodes->n : 1;
    const kt_moe_layer *from = routed->node_experts ? routed->node_experts : &routed->experts;
    const kt_moe_layer *more = shared->node_experts ? shared->node_experts : &shared->experts;
    kt_moe_layer *layers = kt_step_alloc(s, (size_t)n_nodes * sizeof *layers);

    for (int i = 0; layers && i < n_nodes; i++)
        if (!join(s, &from[i], &more[i], &layers[i])) layers = NULL;
    if (!layers) return kt_fail(err, KT_E_NOMEM, "no memory for the experts of a layer");
    if (routed->node_experts)
        state->node_layers = layers;
    else
        state->layer = layers;
    return KT_OK;
}

static kt_moe_bias bias_of(const kt_exec_node *n, int64_t channels) {
    kt_moe_bias bias = {.stride = channels};

    if (n->weight2) bias.gate = n->weight2->data[0];
    if (n->weight3) bias.up = n->weight3->data[0];
    if (n->weight4) bias.down = n->weight4->data[0];
    return bias;
}

/* The loaded layers with what this node does behind its products; slices have their channels'
 * biases, and the first those of down. */
static kt_status set_ending(kt_exec_node *n, experts_state *state, kt_err *err) {
    const int is_cut = state->node_layers != NULL, count = is_cut ? n->step->nodes->n : 1;
    const kt_moe_layer *from = is_cut ? state->node_layers : state->layer;
    kt_moe_layer *layers = kt_step_alloc(n->step, (size_t)count * sizeof *layers);
    kt_moe_layer whole = n->weight->experts;
    int64_t begin = 0;

    if (!layers) return kt_fail(err, KT_E_NOMEM, "no memory for the experts of a layer");
    whole.bias = bias_of(n, n->step->graph->weights[n->node->weight].n);
    for (int i = 0; i < count; begin += layers[i++].problem.n) {
        layers[i] = from[i];
        layers[i].glu = n->node->glu;
        layers[i].bias = kt_moe_slice_layer(&whole, begin, begin + from[i].problem.n, NULL).bias;
    }
    if (is_cut)
        state->node_layers = layers;
    else
        state->layer = layers;
    return KT_OK;
}

/* The same call over the memory nodes, each with working memory of its own. */
static kt_status init_nodes(kt_step *s, const kt_moe_layer *layers, kt_step_ffn *ffn, kt_err *err) {
    const kt_node_plan *plan = s->nodes;
    kt_moe_nodes *n = kt_step_alloc(s, sizeof *n);

    if (!n) return kt_fail(err, KT_E_NOMEM, "no memory for the memory nodes");
    n->n_nodes = plan->n;
    n->x = ffn->job.x, n->ldx = ffn->job.ldx;
    n->out = ffn->job.out, n->ldo = ffn->job.ldo;
    n->accumulate = ffn->job.accumulate;
    n->expert_id = ffn->job.expert_id, n->route_weight = ffn->job.route_weight;
    for (int i = 0; i < plan->n; i++) {
        size_t bytes = kt_moe_nodes_bytes(&layers[i], s->max_rows, s->n_threads);
        n->layer[i] = &layers[i];
        n->threads[i] = plan->threads[i];
        KT_TRY(kt_buffer_create(bytes, KT_PAGES_ADVISED, plan->memory[i], &ffn->workspace[i], err));
        n->workspace[i] = ffn->workspace[i].data;
    }
    ffn->nodes = n;
    return kt_moe_nodes_init(n, s->max_rows, err);
}

/* Of the last routing, of a gate, or ones. */
static const float *weights_of(const kt_exec_node *n) {
    if (n->node->is_routed) return n->step->route_weight;
    return n->node->in2.width == 1 ? n->in2.x : n->step->ones;
}

static kt_status make_job(kt_exec_node *n, const experts_state *state, kt_err *err) {
    kt_step *s = n->step;
    const int is_routed = n->node->is_routed;
    kt_step_ffn *ffn = state->ffn;
    kt_moe_job *job = &ffn->job;
    size_t bytes;

    job->layer = state->layer;
    job->x = n->in.x, job->ldx = n->in.ld;
    job->out = n->out.x, job->ldo = n->out.ld;
    job->accumulate = 1;
    job->expert_id = is_routed ? s->expert_id : s->zeros;
    job->route_weight = weights_of(n);
    if (s->nodes->n > 1) return init_nodes(s, state->node_layers, ffn, err);
    bytes = kt_moe_workspace_bytes(job->layer, s->max_rows, s->n_threads);
    job->workspace = kt_step_alloc(s, bytes);
    if (!job->workspace) return kt_fail(err, KT_E_NOMEM, "no memory for the feed-forward layers");
    return kt_moe_job_init(job, s->max_rows, s->n_threads, bytes, err);
}

static kt_status find_job(kt_exec_node *n, experts_state *state, kt_err *err) {
    kt_step *s = n->step;
    const kt_problem_plan *plan = kt_model_plan_run(s->plan, n->node->weight, 0);
    const int64_t experts = plan->problem.experts + (state->shared != NULL);

    for (int i = 0; i < s->n_ffn; i++)
        if (s->ffn[i].plan == plan && s->ffn[i].experts == experts) state->ffn = &s->ffn[i];
    if (state->ffn) return KT_OK;
    if (s->n_ffn == KT_STEP_SHARED)
        return kt_fail(err, KT_E_UNSUPPORTED, "more than %d kinds of feed-forward", KT_STEP_SHARED);
    state->ffn = &s->ffn[s->n_ffn++];
    state->ffn->plan = plan;
    state->ffn->experts = experts;
    return make_job(n, state, err);
}

/* A shared expert that runs with the routed ones has no state: they do its work. */
static kt_status init(kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    experts_state *state;

    if (!n->node->is_routed && kt_joined_routed(s->plan, n->node)) return KT_OK;
    state = kt_step_alloc(s, sizeof *state);
    if (!state) return kt_fail(err, KT_E_NOMEM, "no memory for the feed-forward layers");
    n->state = state;
    state->layer = &n->weight->experts;
    state->node_layers = n->weight->node_experts;
    if (n->node->is_routed) state->shared = kt_joined_shared(s->plan, n->node);
    if (state->shared) KT_TRY(join_layers(n, state, err));
    KT_TRY(set_ending(n, state, err));
    state->is_split = kt_step_is_shared(s, n->node, &state->is_apart);
    return find_job(n, state, err);
}

/* ---- running ---- */

/* What knows the routing of the last run: the job, or a node's. */
static const kt_moe_job *job_of(const kt_exec_node *n) {
    const kt_step_ffn *ffn = ((const experts_state *)n->state)->ffn;
    return ffn->nodes ? &ffn->nodes->job[0] : &ffn->job;
}

static int phases(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]) {
    const experts_state *state = n->state;
    kt_step_ffn *ffn = state ? state->ffn : NULL;

    (void)is_few;
    if (!ffn) return 0;
    if (ffn->nodes) {
        kt_moe_nodes_phases(ffn->nodes, out);
        return KT_MOE_NODES_PHASES;
    }
    kt_moe_job_phases(&ffn->job, out);
    return KT_MOE_PHASES;
}

/* Those of the routing that this side has; none where the CPU's experts are left out. */
static const int32_t *ids_of(const kt_exec_node *n) {
    const experts_state *state = n->state;
    const kt_step *s = n->step;

    if (state->is_split) return s->cold_id;
    if (!n->node->is_routed) return s->zeros;
    if (s->left_out != KT_LEFT_CPU) return s->expert_id;
    memset(s->cold_id, 0xff,
           (size_t)(s->rows * n->weight->experts.problem.topk) * sizeof *s->cold_id);
    return s->cold_id;
}

/* The first phase of the job; the others find what it left. */
static void bind(kt_exec_node *n) {
    const experts_state *state = n->state;
    const kt_step *s = n->step;
    kt_step_ffn *ffn = state->ffn;
    kt_moe_job *job = &ffn->job;

    job->layer = state->layer;
    job->x = n->in.x, job->ldx = n->in.ld;
    job->out = state->is_apart ? s->cold_sum : n->out.x;
    job->ldo = state->is_apart ? n->out.width : n->out.ld;
    job->accumulate = !state->is_apart;
    job->expert_id = ids_of(n);
    job->route_weight = weights_of(n);
    job->tokens = s->rows;
    if (!ffn->nodes) return;
    ffn->nodes->x = job->x, ffn->nodes->out = job->out;
    ffn->nodes->ldx = job->ldx, ffn->nodes->ldo = job->ldo;
    ffn->nodes->accumulate = job->accumulate;
    ffn->nodes->expert_id = job->expert_id;
    ffn->nodes->route_weight = job->route_weight;
    ffn->nodes->tokens = s->rows;
    for (int i = 0; i < ffn->nodes->n_nodes; i++) ffn->nodes->job[i].layer = &state->node_layers[i];
}

static kt_step_kind time_of(const kt_exec_node *n) {
    (void)n;
    return KT_STEP_FFN;
}

/* After its experts are known. */
static void count(kt_exec_node *n) {
    kt_step *s = n->step;
    const experts_state *state = n->state;
    const kt_problem_plan *p = state->ffn->plan;
    const kt_moe_job *job = job_of(n);
    double size = 3 * (double)p->problem.n * (double)p->problem.k;
    double rows = (double)(s->rows * job->layer->problem.topk);
    int64_t hit, busiest;

    kt_moe_job_load(job, &hit, &busiest);
    kt_step_count(s, KT_STEP_FFN, 2 * rows * size, (double)hit * (double)p->bytes);
    if (!n->node->is_routed) return;
    s->profile.moe_layers++;
    s->profile.experts_hit += (double)(hit - (state->shared != NULL));
    s->profile.expert_rows += (double)(s->rows * p->problem.topk);
    for (int64_t e = 0; state->shared && e < p->problem.experts; e++) {
        const int64_t of_expert = kt_moe_job_rows(job, e);
        busiest = e == 0 || of_expert > busiest ? of_expert : busiest;
    }
    if (busiest > s->profile.busiest_rows) s->profile.busiest_rows = busiest;
}

static void note(kt_exec_node *n) {
    const int64_t experts = n->weight->experts.problem.experts;
    const kt_step *s = n->step;

    if (!n->node->is_routed) return;
    if (((const experts_state *)n->state)->is_split) {
        kt_step_note_routing(s, n->node);
        return;
    }
    if (s->recorder) kt_recorder_layer(s->recorder);
    if (s->is_mapped) kt_expert_map_layer(s->expert_map);
    for (int64_t e = 0; e < experts; e++) {
        const int64_t rows = kt_moe_job_rows(job_of(n), e);
        if (rows == 0) continue;
        if (s->recorder) kt_recorder_expert(s->recorder, e, rows);
        if (s->is_mapped) kt_expert_map_add(s->expert_map, e, rows);
    }
}

/* The weight that expert e of a job belongs to; its number there replaces *e. */
static int weight_of(const kt_exec_node *n, int64_t *e) {
    const experts_state *state = n->state;

    if (!state->shared || *e < n->weight->experts.problem.experts) return n->node->weight;
    *e = 0;
    return state->shared->weight;
}

static void observe(kt_exec_node *n) {
    const kt_step *s = n->step;
    const int64_t topk = job_of(n)->layer->problem.topk;

    for (int64_t i = 0; i < s->rows * topk; i++) {
        int64_t expert = n->node->is_routed ? s->expert_id[i] : 0;
        const int weight = weight_of(n, &expert);
        if (expert >= 0)
            kt_importance_add(s->importance, weight, 0, expert, n->in.x + i / topk * n->in.ld);
    }
}

/* What gate and up left is encoded: those numbers are what down is applied to. */
static void observe_last(kt_exec_node *n) {
    const kt_moe_job *job = job_of(n);
    const kt_problem *p = &job->layer->problem;

    for (int64_t e = 0; e < p->experts; e++)
        for (int64_t i = 0; i < kt_moe_job_rows(job, e); i++) {
            int64_t expert = e;
            const int weight = weight_of(n, &expert);
            kt_importance_add_encoded(n->step->importance, weight, expert, p->acts,
                                      kt_moe_job_h(job, e, i));
        }
}

const kt_exec_op kt_exec_op_experts = {.kind = KT_NODE_EXPERTS,
                                       .init = init,
                                       .phases = phases,
                                       .bind = bind,
                                       .time = time_of,
                                       .count = count,
                                       .note = note,
                                       .observe = observe,
                                       .observe_last = observe_last};
