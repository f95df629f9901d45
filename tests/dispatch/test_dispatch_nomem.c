/* Registry, table, topology and planner with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "dispatch/plan/plan.h"
#include "dispatch/table/table_rows.h"
#include "tests/support/fake_variants.h"
#include "tests/support/nomem.h"
#include "tests/support/temp.h"

static kt_status make_registry(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_registry_create(kt_fake_variants, kt_fake_variant_count, KT_FAKE_ISA, out, err);
}
static void unmake_registry(void *out) {
    kt_registry_destroy(*(kt_registry **)out);
}

Test(dispatch_nomem, a_registry_is_whole_or_none) {
    const kt_nomem_case c = {.function = "kt_registry_create",
                             .make = make_registry,
                             .unmake = unmake_registry,
                             .out_bytes = sizeof(kt_registry *),
                             .says = "registry: no memory for"};
    kt_nomem_check(&c);
}

static kt_status make_topology(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_topology_probe(out, err);
}

Test(dispatch_nomem, a_machine_is_seen_whole_or_not_at_all) {
    const kt_nomem_case c = {.function = "kt_topology_probe",
                             .make = make_topology,
                             .out_bytes = sizeof(kt_topology),
                             .says = "topology: "};
    int cpus[4];
    long before = kt_nomem_held();

    kt_nomem_check(&c);
    for (int i = 0; i < 3; i++) {
        kt_nomem_after(i);
        cr_assert_eq(kt_topology_core_cpus(cpus, 4), 0, "without memory %d", i);
        cr_assert(kt_nomem_failed());
    }
    cr_assert_geq(kt_topology_core_cpus(cpus, 4), 1);
    cr_assert_eq(kt_nomem_held(), before);
}

static kt_table_row make_row(int64_t m, int64_t n) {
    kt_table_row r;

    memset(&r, 0, sizeof r);
    r.problem = (kt_problem){.op = KT_OP_GEMM,
                             .weights = KT_W_INT4_G32,
                             .acts = KT_A_INT8_G32,
                             .m = m,
                             .n = n,
                             .k = 2048};
    r.threads = 2;
    snprintf(r.variant, sizeof r.variant, "fake_wide__avx512vnni");
    snprintf(r.config, sizeof r.config, "rows=4,prefetch=0");
    r.version = 3;
    r.time_ns = 40000.0 + (double)(m * n);
    r.ci_low = 0.99, r.ci_high = 1.01;
    snprintf(r.default_variant, sizeof r.default_variant, "fake_base__scalar");
    r.default_ns = 2 * r.time_ns;
    snprintf(r.status, sizeof r.status, "tuned");
    return r;
}

static const kt_fingerprint machine = {.vendor = "AuthenticAMD",
                                       .microarch = "zen4",
                                       .family = 25,
                                       .model = 17,
                                       .isa = KT_FAKE_ISA,
                                       .usable_cores = 2,
                                       .numa_nodes = 1,
                                       .memory_bytes = (uint64_t)24 << 30};

/* 70 rows: their list grows twice. */
static kt_status fill(kt_table *t, kt_err *err) {
    t->fingerprint = machine;
    snprintf(t->workload, sizeof t->workload, "mini");
    for (int i = 0; i < 70; i++) {
        kt_table_row row = make_row(kt_m_buckets[i % 10], 768 + 64 * (i / 10));
        kt_table_plan plan = {.cell = "threads", .tokens = i + 1, .imbalance = 1.5};
        kt_status st = kt_table_put(t, &row, err);
        if (st != KT_OK) return st;
        if (i >= 5) continue;
        snprintf(plan.routing, sizeof plan.routing, "uniform");
        plan.row = make_row(i + 1, 768);
        plan.row.problem.op = KT_OP_MOE_FFN;
        plan.row.problem.experts = 8, plan.row.problem.topk = 2;
        plan.row.version = 0;
        snprintf(plan.row.variant, sizeof plan.row.variant, "threads");
        snprintf(plan.row.default_variant, sizeof plan.row.default_variant, "threads");
        snprintf(plan.row.config, sizeof plan.row.config, "threads=1");
        snprintf(plan.row.default_config, sizeof plan.row.default_config, "threads=2");
        st = kt_table_put_plan(t, &plan, err);
        if (st != KT_OK) return st;
    }
    return KT_OK;
}

static kt_table *full_table(void) {
    kt_table *t;
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_table_create(&t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(fill(t, &err), KT_OK, "%s", err.message);
    return t;
}

static kt_status make_table(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_table_create(out, err);
}
static void unmake_table(void *out) {
    kt_table_destroy(*(kt_table **)out);
}

static kt_status make_full_table(void *out, const void *with, kt_err *err) {
    kt_table *t;
    kt_status st = kt_table_create(&t, err);

    (void)with;
    if (st == KT_OK) st = fill(t, err);
    if (st == KT_OK)
        *(kt_table **)out = t;
    else
        kt_table_destroy(t);
    return st;
}

static kt_status load_table(void *out, const void *with, kt_err *err) {
    return kt_table_load(with, out, err);
}

typedef struct saving {
    const kt_table *table;
    const char *path;
} saving;

static kt_status save_table(void *out, const void *with, kt_err *err) {
    const saving *s = with;
    (void)out;
    return kt_table_save(s->table, s->path, err);
}

Test(dispatch_nomem, a_table_is_made_saved_and_loaded_whole_or_not) {
    char folder[256], path[300], *text, *again;
    size_t size, size_again;
    kt_table *table = full_table();
    const saving s = {table, path};
    kt_nomem_case c = {.out_bytes = sizeof(kt_table *), .says = "table", .unmake = unmake_table};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/mini.kttable.json", folder);
    c.function = "kt_table_create", c.make = make_table;
    kt_nomem_check(&c);
    c.function = "kt_table_put", c.make = make_full_table;
    cr_assert_gt(kt_nomem_check(&c), 5, "rows and plans grow");

    cr_assert_eq(kt_table_save(s.table, path, NULL), KT_OK);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, NULL), KT_OK);
    c.function = "kt_table_load", c.make = load_table, c.with = path;
    kt_nomem_check(&c);

    c.function = "kt_table_save", c.make = save_table, c.unmake = NULL, c.with = &s;
    c.out_bytes = 0;
    c.n_optional = 1; /* the folder's fsync */
    kt_nomem_check(&c);
    cr_assert_eq(kt_file_read(path, 1 << 20, &again, &size_again, NULL), KT_OK);
    cr_assert(size == size_again && memcmp(text, again, size) == 0, "the file has changed");
    free(text);
    free(again);
    kt_table_destroy(table);
    kt_temp_remove(folder);
}

typedef struct planning {
    kt_registry *registry;
    kt_table *table;
    const char *command;
} planning;

static kt_status make_planner(void *out, const void *with, kt_err *err) {
    const planning *p = with;
    return p->command
               ? kt_planner_create_for(p->registry, p->table, &machine, p->command, NULL, out, err)
               : kt_planner_create(p->registry, p->table, &machine, NULL, out, err);
}
static void unmake_planner(void *out) {
    kt_planner_destroy(*(kt_planner **)out);
}

/* Answers, not only the planner: after it was made nothing may need memory. */
Test(dispatch_nomem, a_planner_is_whole_or_none_and_answers_without_memory) {
    planning p = {.table = full_table()};
    const kt_problem problem = make_row(1, 768).problem;
    kt_nomem_case c = {.function = "kt_planner_create",
                       .make = make_planner,
                       .unmake = unmake_planner,
                       .with = &p,
                       .out_bytes = sizeof(kt_planner *),
                       .says = "plan: no memory",
                       .n_optional = 1}; /* whether the command that is proposed has its model */
    static kt_choice_map map;
    kt_planner *planner = NULL;
    kt_plan_source source;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(make_registry(&p.registry, NULL, &err), KT_OK, "%s", err.message);
    kt_nomem_check(&c);
    p.command = "kttune run mini", c.function = "kt_planner_create_for";
    kt_nomem_check(&c);
    p.table->rows[0].version = 1, c.function = "kt_planner_create, a row ignored";
    kt_nomem_check(&c);

    cr_assert_eq(make_planner(&planner, &p, &err), KT_OK, "%s", err.message);
    kt_nomem_after(0);
    cr_assert_eq(kt_plan_resolve(planner, &problem, 2, 4096, 0.5, &map, &source, &err), KT_OK, "%s",
                 err.message);
    cr_assert_not(kt_nomem_failed(), "resolving allocates");
    kt_planner_destroy(planner);
    kt_registry_destroy(p.registry);
    kt_table_destroy(p.table);
}
