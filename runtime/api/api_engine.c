/* Loading by the words that people use, and what was loaded. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/api/api_options.h"
#include "runtime/api/sized.h"
#include "runtime/exec/engine_impl.h"
#include "runtime/exec/option_words.h"
#include "runtime/model/node_plan.h"

void kt_model_options_init(kt_model_options *options, size_t size) {
    const kt_model_options initial = {
        .size = size, .weights = "native", .kv = "bf16", .numa = "auto"};

    memset(options, 0, size);
    memcpy(options, &initial, size < sizeof initial ? size : sizeof initial);
}

static kt_status read_words(const kt_model_options *o, kt_engine_options *out, kt_err *err) {
    const int quant = kt_quant_parse(o->weights), numa = kt_numa_parse(o->numa);

    if (quant < 0)
        return kt_fail(err, KT_E_INVALID, "weights '%.80s', expected " KT_QUANT_WORDS, o->weights);
    if (numa < 0)
        return kt_fail(err, KT_E_INVALID, "numa '%.80s', expected auto, off or 2 to %d", o->numa,
                       KT_MOE_MAX_NODES);
    out->weights = (kt_quant)quant;
    out->numa = numa;
    out->kv = kt_kv_parse(o->kv);
    if (out->kv != KT_W_NONE) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "kv '%.80s', expected bf16, fp8 or int8", o->kv);
}

/* Numbers that no machine or model has; the rest is compared with the model's. */
static kt_status check_numbers(const kt_model_options *o, kt_err *err) {
    if (o->n_threads < 0 || o->n_threads > 1024)
        return kt_fail(err, KT_E_INVALID, "n_threads %d, expected 0 to 1024", (int)o->n_threads);
    if (o->context < 0 || o->step_rows < 0)
        return kt_fail(err, KT_E_INVALID, "context %lld, step_rows %lld: expected 0 or more",
                       (long long)o->context, (long long)o->step_rows);
    return KT_OK;
}

kt_status kt_model_options_take(const kt_model_options *from, kt_model_options *known,
                                kt_engine_options *out, kt_err *err) {
    kt_model_options_init(known, sizeof *known);
    KT_TRY(kt_sized_take(known, sizeof *known, from, "kt_model_options", err));
    if (!known->model) return kt_fail(err, KT_E_INVALID, "kt_model_options: model is missing");
    if (!known->weights || !known->kv || !known->numa)
        return kt_fail(err, KT_E_INVALID,
                       "kt_model_options: weights, kv or numa is NULL, expected a word "
                       "(kt_model_options_init)");
    KT_TRY(check_numbers(known, err));
    *out = (kt_engine_options){.model_dir = known->model,
                               .importance = known->importance,
                               .table_path = known->table,
                               .n_threads = known->n_threads,
                               .max_context = known->context,
                               .max_chunk = known->step_rows,
                               .kv_memory = known->kv_bytes,
                               .exact_acts = known->exact_acts,
                               .allow_nonfinite = known->allow_nonfinite,
                               .deterministic = known->deterministic,
                               .tokenizer_optional = known->tokenizer_optional,
                               .strict_tokenizer = known->strict_tokenizer,
                               .cancel = known->cancel,
                               .cancel_arg = known->cancel_arg};
    return read_words(known, out, err);
}

static void pass_on(void *arg, kt_log_level level, const char *area, const char *message) {
    const kt_model_options *o = arg;
    (void)level;
    (void)area;

    o->warn(o->warn_arg, message);
}

kt_status kt_engine_load(const kt_model_options *options, kt_engine **out, kt_err *err) {
    kt_model_options known;
    kt_engine_options o;
    kt_log log = {.level = KT_LOG_WARN, .sink = pass_on, .sink_arg = &known};
    kt_status st;

    *out = NULL;
    KT_TRY(kt_model_options_take(options, &known, &o, err));
    if (known.warn) o.log = &log;
    st = kt_engine_create(&o, out, err);
    if (st == KT_OK) (*out)->log = (kt_log){0}; /* `known` ends here */
    return st;
}

kt_status kt_engine_model(const kt_engine *e, kt_model_info *out, kt_err *err) {
    kt_engine_info found;
    kt_model_info info;

    kt_engine_describe(e, &found);
    info = (kt_model_info){.name = found.model_name,
                           .family = found.family,
                           .vocab = found.vocab,
                           .hidden = found.hidden,
                           .layers = found.layers,
                           .context = found.max_context,
                           .step_rows = kt_engine_max_rows(e),
                           .n_threads = (int32_t)found.n_threads,
                           .n_eos = found.n_eos,
                           .weight_bytes = found.weight_bytes,
                           .cache_bytes = found.cache_bytes};
    memcpy(info.eos, found.eos, sizeof info.eos);
    return kt_sized_give(out, &info, sizeof info, "kt_model_info", err);
}
