/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/bench_report.h"

#include <stdio.h>

static double share_of(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

/* The least time a kind of work can take: its bytes at the stream's speed or its operations at the
 * instruction's peak, whichever is longer. */
static double floor_ns(const kt_profile_kind *k, const kt_roofline *r) {
    double reading = share_of(k->bytes, r->stream_gbs);
    double computing = share_of(k->ops, r->peak_gops[k->unit]);
    return reading > computing ? reading : computing;
}

/* Why the work was faster than the roofline: "" when it was not. */
static const char *excess(double bytes, double floor_ns, double ns, const kt_roofline *r) {
    if (floor_ns <= ns) return "";
    return share_of(bytes, r->stream_gbs) > ns
               ? " (over 100: bytes came from a cache)"
               : " (over 100: the peak was measured at a lower clock)";
}

/* Sums over the kinds, and the figures that the bars are about. */
typedef struct totals {
    double ns, ops, bytes, floor_ns;
    double of_stream; /* bytes per second of the stream's */
    double of_peak;   /* operations per second of the feed-forward's peak */
    double waiting, serial;
} totals;

static totals sum_up(const kt_bench_speed *s) {
    const kt_profile *p = &s->profile;
    totals t = {.ns = (double)p->time_ns};
    double thread_ns = t.ns * (double)s->threads;

    for (int i = 0; i < KT_PROFILE_KINDS; i++) {
        const kt_profile_kind *k = &p->kind[i];
        t.ops += k->ops;
        t.bytes += k->bytes;
        t.floor_ns += floor_ns(k, &s->roofline);
    }
    t.of_peak = share_of(share_of(t.ops, t.ns), s->roofline.peak_gops[p->unit]);
    t.of_stream = share_of(share_of(t.bytes, t.ns), s->roofline.stream_gbs);
    t.serial = share_of((double)p->serial_ns, t.ns);
    t.waiting = 1 - share_of((double)(p->busy_ns + p->serial_ns), thread_ns);
    return t;
}

static void print_kind(const kt_profile_kind *k, const kt_roofline *r, double total_ns) {
    double ns = (double)k->time_ns;

    if (k->time_ns == 0) return; /* the model has no such work */
    printf("  %-10s %5.1f %%", k->name, 100 * share_of(ns, total_ns));
    if (k->ops > 0)
        printf("  %8.1f Gop/s  %6.2f GB/s", share_of(k->ops, ns), share_of(k->bytes, ns));
    if (k->ops > 0 && r->stream_gbs > 0)
        printf("  %5.1f %% of its roofline%s", 100 * share_of(floor_ns(k, r), ns),
               excess(k->bytes, floor_ns(k, r), ns, r));
    putchar('\n');
}

static const char *const peak_names[KT_UNIT_COUNT] = {
    [KT_UNIT_F32] = "f32 peak", [KT_UNIT_BF16] = "bf16 peak", [KT_UNIT_INT8] = "int8 peak"};

static void print_details(const kt_bench_speed *s) {
    const kt_roofline *r = &s->roofline;
    const kt_profile *p = &s->profile;
    totals t = sum_up(s);

    for (int i = 0; i < KT_PROFILE_KINDS; i++) print_kind(&p->kind[i], r, t.ns);
    printf("  all                %8.1f Gop/s  %6.2f GB/s", share_of(t.ops, t.ns),
           share_of(t.bytes, t.ns));
    if (r->stream_gbs > 0)
        printf("  %5.1f %% of the roofline, %.1f %% of the %s%s", 100 * share_of(t.floor_ns, t.ns),
               100 * (s->is_decode ? t.of_stream : t.of_peak),
               s->is_decode ? "stream" : peak_names[p->unit], excess(t.bytes, t.floor_ns, t.ns, r));
    printf("\n  threads wait %.1f %% (barriers, tail of phases), one works alone %.1f %%\n",
           100 * t.waiting, 100 * t.serial);
    if (s->expected_ms > 0)
        printf("  the plan expects %.3f ms a step of the matrices, %.3f of them of the experts\n",
               s->expected_ms, s->expected_experts_ms);
    if (p->moe_layers > 0)
        printf("  routing: %.1f experts per layer and step, %.1f rows each, %lld at most\n",
               p->experts_hit / p->moe_layers, share_of(p->expert_rows, p->experts_hit),
               (long long)p->busiest_rows);
}

void kt_bench_print(const kt_bench_speed *s, bool details) {
    printf("%-12s %10.2f ± %.2f tokens/s", s->name, s->mean, s->deviation);
    if (s->is_decode) printf(", median step %.3f ms", s->step_ms);
    if (details) {
        putchar('\n');
        print_details(s);
        return;
    }
    for (int i = 0; i < KT_PROFILE_KINDS; i++)
        if (s->profile.kind[i].time_ns)
            printf("%s %s %.0f%%", i ? "" : "  ", s->profile.kind[i].name,
                   100 * share_of((double)s->profile.kind[i].time_ns, (double)s->profile.time_ns));
    putchar('\n');
}

static void put_kind(kt_json_writer *w, const kt_profile_kind *k, const kt_roofline *r,
                     double total_ns) {
    double ns = (double)k->time_ns;

    kt_json_key(w, k->name);
    kt_json_begin_object(w);
    kt_json_add_fixed(w, "time_share", share_of(ns, total_ns), 4);
    kt_json_add_fixed(w, "gops", share_of(k->ops, ns), 2);
    kt_json_add_fixed(w, "gbs", share_of(k->bytes, ns), 3);
    if (r->stream_gbs > 0) kt_json_add_fixed(w, "roofline", share_of(floor_ns(k, r), ns), 4);
    kt_json_end_object(w);
}

void kt_bench_put(const kt_bench_speed *s, kt_json_writer *w) {
    const kt_roofline *r = &s->roofline;
    totals t = sum_up(s);

    kt_json_begin_object(w);
    kt_json_add_string(w, "test", s->name);
    kt_json_add_fixed(w, "tokens_per_second", s->mean, 3);
    kt_json_add_fixed(w, "deviation", s->deviation, 3);
    if (s->is_decode) kt_json_add_fixed(w, "median_step_ms", s->step_ms, 4);
    if (s->expected_ms > 0) kt_json_add_fixed(w, "expected_step_ms", s->expected_ms, 4);
    if (s->expected_ms > 0) kt_json_add_fixed(w, "expected_experts_ms", s->expected_experts_ms, 4);
    kt_json_add_int(w, "repetitions", s->repetitions);
    kt_json_add_fixed(w, "gops", share_of(t.ops, t.ns), 2);
    kt_json_add_fixed(w, "gbs", share_of(t.bytes, t.ns), 3);
    kt_json_add_fixed(w, "waiting_share", t.waiting, 4);
    kt_json_add_fixed(w, "serial_share", t.serial, 4);
    if (r->stream_gbs > 0) {
        kt_json_add_fixed(w, "roofline", share_of(t.floor_ns, t.ns), 4);
        kt_json_add_fixed(w, "of_stream", t.of_stream, 4);
        kt_json_add_fixed(w, "of_peak", t.of_peak, 4);
        kt_json_add_string(w, "over", excess(t.bytes, t.floor_ns, t.ns, r));
        kt_json_add_fixed(w, "stream_gbs", r->stream_gbs, 2);
        kt_json_add_fixed(w, "peak_int8_gops", r->peak_gops[KT_UNIT_INT8], 1);
        kt_json_add_fixed(w, "peak_bf16_gops", r->peak_gops[KT_UNIT_BF16], 1);
        kt_json_add_fixed(w, "peak_f32_gops", r->peak_gops[KT_UNIT_F32], 1);
    }
    kt_json_add_fixed(w, "experts_hit", share_of(s->profile.experts_hit, s->profile.moe_layers), 2);
    kt_json_key(w, "ops");
    kt_json_begin_object(w);
    for (int i = 0; i < KT_PROFILE_KINDS; i++) put_kind(w, &s->profile.kind[i], r, t.ns);
    kt_json_end_object(w);
    kt_json_end_object(w);
}
