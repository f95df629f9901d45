/* From nodes to phases: row work waits for the next node with phases. For few rows that node's
 * prepare does it, for many it is a phase of its own. SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/exec/place.h"
#include "runtime/exec/step.h"

/* Of row work in the program for many rows: as many tasks a thread, with so many rows at most. */
enum { TASKS_PER_THREAD = 2, MOST_ROWS_PER_TASK = 8 };

/* ---- running a phase ---- */

static void run_works(const kt_step_op *op, int64_t begin, int64_t end) {
    for (int i = 0; i < op->n_works; i++) op->works[i].run(op->step, op->works[i].node, begin, end);
}

static int64_t cut_rows(kt_step_op *op, int n_threads) {
    const int64_t rows = op->step->rows, share = rows / (TASKS_PER_THREAD * (int64_t)n_threads);

    op->rows_per_task = share < 1 ? 1 : share < MOST_ROWS_PER_TASK ? share : MOST_ROWS_PER_TASK;
    return (rows + op->rows_per_task - 1) / op->rows_per_task;
}

/* Serial row work and the number of tasks. */
static int64_t start(kt_step_op *op, int n_threads) {
    kt_step *s = op->step;

    if (op->is_rows) return cut_rows(op, n_threads);
    run_works(op, 0, s->rows);
    if (op->is_first && op->node->op->bind) op->node->op->bind(op->node);
    return op->inner.prepare ? op->inner.prepare(op->inner.arg, n_threads) : op->inner.n_tasks;
}

static void tell(kt_step_op *op) {
    const kt_step *s = op->step;
    const kt_exec_op *k = op->node ? op->node->op : NULL;

    if (!k) return;
    if ((s->recorder || s->is_mapped) && k->note && op->is_last) k->note(op->node);
    if (s->importance && k->observe && op->is_first) k->observe(op->node);
    if (s->importance && k->observe_last && op->is_last) k->observe_last(op->node);
}

/* Runs before each phase, on one thread. */
static int64_t prepare(void *arg, int n_threads) {
    kt_step_op *op = arg;
    kt_step *s = op->step;
    int64_t tasks;

    if (s->is_profiled) {
        int64_t now = kt_clock_ns();
        s->profile.kind[s->last_kind].time_ns += now - s->stamp_ns;
        s->stamp_ns = now;
        s->last_kind = op->kind;
    }
    tasks = start(op, n_threads);
    tell(op);
    if (s->is_profiled) {
        int64_t now = kt_clock_ns();
        s->profile.kind[KT_STEP_ROWS].time_ns += now - s->stamp_ns;
        s->profile.serial_ns += now - s->stamp_ns;
        s->stamp_ns = now;
        if (op->node && op->is_last && op->node->op->count) op->node->op->count(op->node);
    }
    return tasks;
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    int64_t last = end * op->rows_per_task, rows = op->step->rows;
    int64_t since = op->step->is_profiled ? kt_clock_ns() : 0;

    if (op->is_rows)
        run_works(op, begin * op->rows_per_task, last < rows ? last : rows);
    else
        op->inner.run(op->inner.arg, begin, end, tid);
    if (op->step->is_profiled) op->step->busy[tid].ns += kt_clock_ns() - since;
}

/* ---- writing a program ---- */

typedef struct writer {
    kt_step *step;
    kt_step_program *program;
    kt_step_op *ops;     /* one per phase */
    kt_step_work *works; /* all row work in order; pending is from first_pending on */
    int n_works, first_pending;
    int is_few;
} writer;

static void put_work(writer *w, kt_row_work *work, const kt_exec_node *n) {
    w->works[w->n_works++] = (kt_step_work){work, n};
}

static kt_step_op *push(writer *w, kt_step_kind kind, kt_exec_node *n, const kt_phase *inner) {
    kt_step_op *op = &w->ops[w->program->count];

    *op = (kt_step_op){.step = w->step, .kind = kind, .node = n};
    if (inner) op->inner = *inner;
    w->program->phases[w->program->count++] =
        (kt_phase){.prepare = prepare,
                   .run = run,
                   .arg = op,
                   .grain = inner ? inner->grain : 1,
                   .grain_at = inner ? inner->grain_at : NULL};
    return op;
}

static void take_pending(writer *w, kt_step_op *op) {
    op->works = w->works + w->first_pending;
    op->n_works = w->n_works - w->first_pending;
    w->first_pending = w->n_works;
}

/* Pending row work as a phase. */
static void flush_rows(writer *w) {
    kt_step_op *op;

    if (w->first_pending == w->n_works) return;
    op = push(w, KT_STEP_ROWS, NULL, NULL);
    op->is_rows = op->is_last = 1;
    take_pending(w, op);
}

static void write_phases(writer *w, kt_exec_node *n, int count, const kt_phase *phases) {
    for (int i = 0; i < count; i++) {
        kt_step_op *op;
        if (i == 0 && !w->is_few) flush_rows(w);
        op = push(w, i + 1 < count && n->op->time_before ? n->op->time_before(n) : n->op->time(n),
                  n, &phases[i]);
        op->is_first = i == 0;
        op->is_last = i + 1 == count;
        if (i == 0) take_pending(w, op);
    }
    if (n->op->after) put_work(w, n->op->after, n);
}

static void write_node(writer *w, kt_exec_node *n) {
    kt_phase phases[KT_EXEC_PHASES];
    int count = 0;

    memset(phases, 0, sizeof phases);
    if (n->op->phases) count = n->op->phases(n, w->is_few, phases);
    if (n->op->rows && !(count > 0 && n->op->after)) put_work(w, n->op->rows, n);
    if (count > 0) write_phases(w, n, count, phases);
}

/* What a layer begins with is what hidden states are. */
static void tap(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_rows x = {s->values + s->value_at[0] * s->max_rows, s->graph->numbers.hidden,
                       s->graph->numbers.hidden};

    kt_step_copy_hidden(s, n->node->layer, &x, begin, end);
}

static void write_nodes(writer *w, int first, int end, int *layer) {
    for (int i = first; i < end; i++) {
        kt_exec_node *e = &w->step->exec[i];
        if (!kt_step_is_away(w->step, i)) {
            if (e->node->layer > *layer) put_work(w, tap, e);
            write_node(w, e);
        }
        *layer = e->node->layer;
    }
}

/* What comes from another side is there before a segment and what goes there behind it: no work may
 * wait for the next one. */
static kt_status write_segments(writer *w, bool is_draft, int *layer, kt_err *err) {
    const kt_placement *p = w->step->place;
    kt_step_program *to = w->program;

    to->first = is_draft ? p->main_segments : 0;
    to->end = is_draft ? p->n_segments : p->main_segments;
    to->begin = kt_step_alloc(w->step, (size_t)(p->n_segments + 1) * sizeof(int));
    if (!to->begin) return kt_fail(err, KT_E_NOMEM, "no memory for the segments of a step");
    for (int i = to->first; i < to->end; i++) {
        to->begin[i] = to->count;
        write_nodes(w, p->segment[i].first, p->segment[i].end, layer);
        flush_rows(w);
    }
    to->begin[to->end] = to->count;
    return KT_OK;
}

kt_status kt_step_compile(kt_step *s, kt_step_program *program, int is_few, bool is_draft,
                          kt_err *err) {
    const size_t n = (size_t)s->graph->n_nodes;
    writer w = {.step = s, .program = program, .is_few = is_few};
    int layer = is_draft ? INT_MAX : -1; /* no hidden states of the draft head */

    w.ops = kt_step_alloc(s, n * (KT_EXEC_PHASES + 2) * sizeof *w.ops);
    w.works = kt_step_alloc(s, n * 3 * sizeof *w.works);
    program->phases = kt_step_alloc(s, n * (KT_EXEC_PHASES + 2) * sizeof *program->phases);
    if (!w.ops || !w.works || !program->phases)
        return kt_fail(err, KT_E_NOMEM, "no memory for the phases of a step");
    if (s->place) return write_segments(&w, is_draft, &layer, err);
    write_nodes(&w, is_draft ? s->graph->main_nodes : 0,
                is_draft ? s->graph->n_nodes : s->graph->main_nodes, &layer);
    return KT_OK;
}
