/* The text format of Prometheus 0.0.4: our own series, the set that vLLM's dashboards read, and
 * llama-server's names. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "kt/version.h"

/* A text that grows; out of memory sticks. */
typedef struct page {
    kt_text text;
    char model[300]; /* the label model_name="...", with escapes */
    bool failed;
} page;

static void put(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(page *p, const char *format, ...) {
    char line[800];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof line ||
        kt_text_append(&p->text, line, (size_t)n, NULL) != KT_OK)
        p->failed = true;
}

/* A number in no locale, with six decimals where it has any. */
static const char *number(double v, char *out, size_t size) {
    double whole = floor(v);
    long long millionths = llround((v - whole) * 1e6);

    if (millionths == 1000000) {
        whole++;
        millionths = 0;
    }
    if (millionths)
        snprintf(out, size, "%lld.%06lld", (long long)whole, millionths);
    else
        snprintf(out, size, "%lld", (long long)whole);
    return out;
}

static void begin(page *p, const char *name, const char *type, const char *help) {
    put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(page *p, const char *name, const char *type, double v, const char *help) {
    char text[48];

    begin(p, name, type, help);
    put(p, "%s{%s} %s\n", name, p->model, number(v, text, sizeof text));
}

/* llama-server's have no labels. */
static void bare(page *p, const char *name, const char *type, double v, const char *help) {
    char full[80], text[48];

    snprintf(full, sizeof full, "llamacpp:%s", name);
    begin(p, full, type, help);
    put(p, "%s %s\n", full, number(v, text, sizeof text));
}

static void histogram(page *p, const char *name, const kt_histogram *h, const char *help) {
    int64_t total = 0;
    char text[48];

    begin(p, name, "histogram", help);
    for (int i = 0; i < h->n_bounds; i++) {
        total += h->count[i];
        put(p, "%s_bucket{%s,le=\"%s\"} %lld\n", name, p->model,
            number(h->bound[i], text, sizeof text), (long long)total);
    }
    total += h->count[h->n_bounds];
    put(p, "%s_bucket{%s,le=\"+Inf\"} %lld\n", name, p->model, (long long)total);
    put(p, "%s_sum{%s} %s\n", name, p->model, number(h->sum, text, sizeof text));
    put(p, "%s_count{%s} %lld\n", name, p->model, (long long)total);
}

static void by_outcome(page *p, const char *name, const char *label, const kt_stats *s) {
    begin(p, name, "counter", "Requests that ended, by how.");
    for (int i = 0; i < KT_N_ENDINGS; i++)
        put(p, "%s{%s,%s=\"%s\"} %lld\n", name, p->model, label, kt_ending_name((kt_ending)i),
            (long long)s->finished[i]);
}

static void write_own(page *p, const kt_app *app, const kt_stats *s, kt_app_gauges g) {
    begin(p, "kt_build_info", "gauge", "Version; always 1.");
    put(p, "kt_build_info{%s,version=\"%s\",fingerprint=\"%.40s\"} 1\n", p->model, KT_VERSION,
        app->backend->fingerprint);
    single(p, "kt_start_time_seconds", "gauge", (double)app->created_s, "Start, in Unix time.");
    single(p, "kt_requests_running", "gauge", g.running, "Requests that the engine works on.");
    single(p, "kt_requests_waiting", "gauge", g.waiting, "Requests that wait for the engine.");
    single(p, "kt_queue_capacity", "gauge", g.queue, "Requests that may wait.");
    by_outcome(p, "kt_requests_total", "outcome", s);
    single(p, "kt_prompt_tokens_total", "counter", (double)s->prompt_tokens,
           "Tokens of prompts, those taken from the cache included.");
    single(p, "kt_cached_tokens_total", "counter", (double)s->cached_tokens,
           "Tokens of prompts that needed no computing.");
    single(p, "kt_generated_tokens_total", "counter", (double)s->generated_tokens,
           "Tokens that were generated.");
    histogram(p, "kt_time_to_first_token_seconds", &s->to_first_token,
              "From a request's arrival to its first token.");
    histogram(p, "kt_inter_token_seconds", &s->between_tokens, "Between tokens of a request.");
    histogram(p, "kt_request_seconds", &s->whole, "From a request's arrival to its end.");
    histogram(p, "kt_queue_seconds", &s->in_queue, "From a request's arrival to its begin.");
}

/* What the scheduler and the pools of pages say. */
static void write_engine(page *p, const kt_scheduler_counts *c) {
    const kt_kv_usage *kv = &c->kv;

    single(p, "kt_kv_pages", "gauge", (double)kv->pages, "Pages of 64 tokens for keys and values.");
    single(p, "kt_kv_pages_used", "gauge", (double)kv->pages_used, "Pages of running sequences.");
    single(p, "kt_kv_pages_cached", "gauge", (double)kv->pages_cached,
           "Pages kept for reuse alone; given up when pages are short.");
    single(p, "kt_state_slots", "gauge", (double)kv->slots, "Slots for recurrent states.");
    single(p, "kt_state_slots_used", "gauge", (double)kv->slots_used, "Slots of sequences.");
    single(p, "kt_state_slots_cached", "gauge", (double)kv->slots_cached, "Slots kept for reuse.");
    single(p, "kt_batch_choices", "gauge", c->choices, "Answers that are being computed.");
    single(p, "kt_batch_resting", "gauge", c->resting,
           "Answers whose client does not read, with those that gave up their places.");
    single(p, "kt_batch_rows", "gauge", c->choices ? (double)c->last_rows : 0,
           "Rows of the last step; 0 when nothing runs.");
    single(p, "kt_step_seconds", "gauge", (double)c->last_step_ns * 1e-9, "The last step's time.");
    single(p, "kt_steps_total", "counter", (double)c->steps, "Steps.");
    single(p, "kt_steps_stopped_total", "counter", (double)c->stopped_steps,
           "Steps that were given up, as their clients had left.");
    single(p, "kt_prompt_rows_total", "counter", (double)c->prompt_rows, "Rows of prompts.");
    single(p, "kt_decode_rows_total", "counter", (double)c->decode_rows, "Rows of answers.");
    single(p, "kt_preemptions_total", "counter", (double)c->preemptions,
           "Answers that gave up their pages and were computed again.");
    single(p, "kt_prefix_hit_tokens_total", "counter", (double)c->cached_tokens,
           "Tokens of prompts that were found in the prefix cache.");
}

/* One series for each place in a draft. */
static void by_position(page *p, const char *name, const char *labels,
                        const kt_scheduler_counts *c) {
    begin(p, name, "counter", "Accepted tokens, by their place in the draft.");
    for (int i = 0; i < c->draft_positions; i++)
        put(p, "%s{%sposition=\"%d\"} %lld\n", name, labels, i, (long long)c->draft_hits_at[i]);
}

/* The gain of drafts is what the cost model says: the time without them against the time with. */
static void write_drafts(page *p, const kt_scheduler_counts *c) {
    const double drafted = (double)c->draft_ns, saved = (double)c->draft_saved_ns;
    char labels[sizeof p->model + 1];

    single(p, "kt_draft_tokens_total", "counter", (double)c->draft_rows,
           "Tokens that were computed as drafts.");
    single(p, "kt_draft_accepted_tokens_total", "counter", (double)c->draft_hits,
           "Of these, those that came true.");
    single(p, "kt_draft_steps_total", "counter", (double)c->draft_steps, "Steps with drafts.");
    single(p, "kt_draft_gain", "gauge", drafted > 0 ? 1 + saved / drafted : 1,
           "How many times as fast drafts made the steps that had them.");
    single(p, "vllm:spec_decode_num_drafts_total", "counter", (double)c->drafts, "Drafts.");
    single(p, "vllm:spec_decode_num_draft_tokens_total", "counter", (double)c->draft_rows,
           "Drafted tokens.");
    single(p, "vllm:spec_decode_num_accepted_tokens_total", "counter", (double)c->draft_hits,
           "Accepted tokens.");
    snprintf(labels, sizeof labels, "%s,", p->model);
    by_position(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", labels, c);
}

static void write_vllm_engine(page *p, const kt_scheduler_counts *c) {
    const kt_kv_usage *kv = &c->kv;
    const double used = kv->pages ? (double)kv->pages_used / (double)kv->pages : 0;

    single(p, "vllm:kv_cache_usage_perc", "gauge", used, "Share of the pages in use, 0 to 1.");
    single(p, "vllm:num_preemptions_total", "counter", (double)c->preemptions, "Preemptions.");
}

static void write_vllm(page *p, const kt_stats *s, kt_app_gauges g) {
    single(p, "vllm:num_requests_running", "gauge", g.running, "Requests in the batch.");
    single(p, "vllm:num_requests_waiting", "gauge", g.waiting, "Requests in the queue.");
    single(p, "vllm:prompt_tokens_total", "counter", (double)s->prompt_tokens, "Prompt tokens.");
    single(p, "vllm:generation_tokens_total", "counter", (double)s->generated_tokens,
           "Generated tokens.");
    single(p, "vllm:prefix_cache_queries_total", "counter", (double)s->prompt_tokens,
           "Tokens asked of the prefix cache.");
    single(p, "vllm:prefix_cache_hits_total", "counter", (double)s->cached_tokens,
           "Tokens found in the prefix cache.");
    by_outcome(p, "vllm:request_success_total", "finished_reason", s);
    histogram(p, "vllm:time_to_first_token_seconds", &s->to_first_token, "Time to first token.");
    histogram(p, "vllm:inter_token_latency_seconds", &s->between_tokens, "Between tokens.");
    histogram(p, "vllm:time_per_output_token_seconds", &s->between_tokens, "Between tokens.");
    histogram(p, "vllm:e2e_request_latency_seconds", &s->whole, "Whole requests.");
    histogram(p, "vllm:request_queue_time_seconds", &s->in_queue, "In the queue.");
    histogram(p, "vllm:request_prefill_time_seconds", &s->prompt_s_each, "Prompts.");
    histogram(p, "vllm:request_decode_time_seconds", &s->generated_s_each, "Generation.");
    histogram(p, "vllm:request_inference_time_seconds", &s->running_s_each, "Both.");
    histogram(p, "vllm:request_prompt_tokens", &s->prompt_tokens_each, "Tokens of prompts.");
    histogram(p, "vllm:request_generation_tokens", &s->generated_tokens_each, "Tokens of answers.");
    histogram(p, "vllm:request_max_num_generation_tokens", &s->max_tokens_each,
              "Tokens that answers might have had.");
}

static double rate(double n, double s) {
    return s > 0 ? n / s : 0;
}

static void write_llama_engine(page *p, const kt_scheduler_counts *c) {
    bare(p, "n_decode_total", "counter", (double)c->steps, "Steps.");
    bare(p, "n_busy_slots_per_decode", "gauge", rate((double)c->step_choices, (double)c->steps),
         "Answers in a step, on average.");
    bare(p, "spec_decode_num_drafts_total", "counter", (double)c->drafts, "Drafts.");
    bare(p, "spec_decode_num_draft_tokens_total", "counter", (double)c->draft_rows,
         "Drafted tokens.");
    bare(p, "spec_decode_num_accepted_tokens_total", "counter", (double)c->draft_hits,
         "Accepted tokens.");
    by_position(p, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "", c);
}

static void write_llama(page *p, const kt_stats *s, kt_app_gauges g) {
    double computed = (double)(s->prompt_tokens - s->cached_tokens);

    bare(p, "prompt_tokens_total", "counter", computed, "Prompt tokens that were computed.");
    bare(p, "prompt_tokens_cached_total", "counter", (double)s->cached_tokens,
         "Prompt tokens from the cache.");
    bare(p, "prompt_seconds_total", "counter", s->prompt_s, "Time in prompts.");
    bare(p, "tokens_predicted_total", "counter", (double)s->generated_tokens, "Generated tokens.");
    bare(p, "tokens_predicted_seconds_total", "counter", s->generated_s, "Time in generation.");
    bare(p, "prompt_tokens_seconds", "gauge", rate(computed, s->prompt_s),
         "Prompt tokens a second, on average.");
    bare(p, "predicted_tokens_seconds", "gauge", rate((double)s->generated_tokens, s->generated_s),
         "Generated tokens a second, on average.");
    bare(p, "n_tokens_max", "counter", (double)s->most_tokens,
         "The most tokens of a request, its prompt included.");
    bare(p, "requests_processing", "gauge", g.running, "Requests in work.");
    bare(p, "requests_deferred", "gauge", g.waiting, "Requests that wait.");
}

/* One series for each kernel that runs, always 1. */
static void put_kernel(void *arg, const char *labels) {
    page *p = arg;
    put(p, "kt_kernel_info{%s,%s} 1\n", p->model, labels);
}

static void write_kernels(page *p, const kt_app *app) {
    begin(p, "kt_kernel_info", "gauge", "What runs an operation of the model; always 1.");
    app->write_metrics(app->owner, put_kernel, p);
}

static void set_model(page *p, const char *name) {
    size_t n = (size_t)snprintf(p->model, sizeof p->model, "model_name=\"");

    for (; *name && n + 4 < sizeof p->model; name++) {
        if (*name == '"' || *name == '\\') p->model[n++] = '\\';
        p->model[n++] = *name == '\n' ? ' ' : *name;
    }
    p->model[n++] = '"';
    p->model[n] = '\0';
}

kt_status kt_metrics_write(kt_app *app, kt_text *out, kt_err *err) {
    page p = {.failed = false};
    const kt_scheduler_counts counts = kt_scheduler_count(app->scheduler);
    const kt_app_gauges g = {counts.running, counts.waiting, counts.capacity};
    const kt_stats s = kt_stats_read(&app->stats);

    set_model(&p, app->model_name);
    write_own(&p, app, &s, g);
    write_engine(&p, &counts);
    single(&p, "kt_step_seconds_total", "counter", (double)counts.step_ns * 1e-9,
           "Time in steps of the engine: the rest of the time nothing was computed.");
    write_vllm(&p, &s, g);
    write_vllm_engine(&p, &counts);
    write_drafts(&p, &counts);
    write_llama(&p, &s, g);
    write_llama_engine(&p, &counts);
    if (app->write_metrics) write_kernels(&p, app);
    if (p.failed) {
        free(p.text.data);
        return kt_fail(err, KT_E_NOMEM, "no memory for the metrics");
    }
    *out = p.text;
    return KT_OK;
}
