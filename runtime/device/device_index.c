/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_index.h"

#include <string.h>

#include "base/err.h"
#include "runtime/device/row_code.h"

enum { SCORED_ROWS = 32 /* at a time */, UNIT = 8 /* keys of a score of blocks */ };
enum { SCORES = 0, PICK, UNITS, BLOCKS }; /* entries of attn_index.cu */

static const kt_cuda_kernel *find_index(const kt_index_rule *rule, const kt_cuda_target *target,
                                        kt_config *config) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        if (strcmp(k->name, "attn_index") != 0) continue;
        *config = kt_cuda_initial(k);
        config->value[0] = (int32_t)rule->dim;
        if (k->refuse(config, target) ||
            k->shared_bytes(config, rule->heads) > (size_t)target->shared_bytes)
            return NULL;
        return k;
    }
    return NULL;
}

const char *kt_device_index_refuse(const kt_device_ask *ask, const kt_index_rule *rule) {
    kt_config config;

    if (rule->block % UNIT) return "blocks of keys that are no multiple of 8";
    return find_index(rule, ask->target, &config) ? NULL
                                                  : "an indexer that attn_index has no code for";
}

kt_status kt_device_index_init(kt_device_step *d, const kt_index_rule *rule, kt_device_index *out,
                               kt_err *err) {
    out->kernel = find_index(rule, kt_device_about(d->device)->target, &out->config);
    if (!out->kernel) return kt_fail(err, KT_E_UNSUPPORTED, "no device code for the indexer");
    return kt_device_step_code(d, out->kernel->name, &out->config, &out->code, err);
}

/* Numbers of a row's scores, and of its blocks'. */
static int64_t score_floats(int64_t keys, int64_t block) {
    return block ? (keys + UNIT - 1) / UNIT : keys;
}

static int64_t best_floats(int64_t keys, int64_t block) {
    return block ? (keys + block - 1) / block : 0;
}

size_t kt_device_index_scratch(const kt_device_step *d, const kt_index_rule *rule, int64_t ratio) {
    const int64_t keys = d->max_context / (ratio > 1 ? ratio : 1) + 1;
    const int64_t lists = SCORED_ROWS * (rule->block ? rule->heads : 1);

    return (size_t)(lists * (score_floats(keys, rule->block) + best_floats(keys, rule->block))) *
           sizeof(float);
}

/* The longest context of rows [row, end). */
static int64_t longest_of(const kt_device_step *d, int64_t row, int64_t end) {
    int64_t longest = 0;

    for (int i = 0; i < d->n_spans; i++) {
        const kt_device_span *s = &d->host_span[i];
        int64_t last = (int64_t)s->first_row + s->rows;
        if (last > end) last = end;
        if (s->first_row >= end || last <= row) continue;
        if (s->position + last - s->first_row > longest)
            longest = s->position + last - s->first_row;
    }
    return longest;
}

static kt_status put_rows(kt_device_step *d, const kt_device_index *index,
                          const kt_attn_index *call, int64_t longest, int rows, kt_err *err) {
    const int keys = index->kernel->threads(&index->config) / 2; /* of a block of threads */
    const size_t shared = index->kernel->shared_bytes(&index->config, call->heads);
    const int x = kt_row_blocks(longest, keys), lists = call->block ? call->heads : 1;

    KT_TRY(kt_device_put(d, index->code, call->block ? UNITS : SCORES, x, rows, shared, call,
                         sizeof *call, err));
    if (call->block)
        KT_TRY(kt_device_put(d, index->code, BLOCKS,
                             kt_row_blocks((longest + call->block - 1) / call->block, 2 * keys),
                             rows * lists, shared, call, sizeof *call, err));
    return kt_device_put(d, index->code, PICK, lists, rows, shared, call, sizeof *call, err);
}

kt_status kt_device_index_put(kt_device_step *d, const kt_device_index *index,
                              const kt_attn_index *first, void *scores, kt_err *err) {
    const int64_t ratio = first->ratio > 1 ? first->ratio : 1, block = first->block;
    const int64_t most = d->max_context / ratio + 1, lists = block ? first->heads : 1;

    for (int64_t row = 0; row < d->rows; row += SCORED_ROWS) {
        const int64_t end = row + SCORED_ROWS < d->rows ? row + SCORED_ROWS : d->rows;
        const int64_t longest = longest_of(d, row, end) / ratio;
        kt_attn_index call = *first;
        if (longest <= first->topk * (block ? block : 1)) continue; /* they meet all their keys */
        call.q += row * call.ldq;
        if (call.w) call.w += row * call.ldw;
        call.position = d->position + row;
        call.page = d->page;
        call.span_of = d->span_of + row;
        call.first_page = d->first_page;
        call.score = scores;
        call.ld_score = score_floats(most, block);
        call.ld_best = best_floats(most, block);
        if (block) call.best = call.score + SCORED_ROWS * lists * call.ld_score;
        call.picked += row * lists * call.topk;
        KT_TRY(put_rows(d, index, &call, longest, (int)(end - row), err));
    }
    return KT_OK;
}

kt_attn_kept kt_device_index_keys(const kt_device_step *d, int plane, int64_t dim) {
    const uint16_t *keys = d->pages.index + d->pages.index_row[plane] * dim;

    return (kt_attn_kept){
        .rows = (const uint8_t *)keys, .page = KT_ATTN_PAGE * dim * 2, .row = dim * 2};
}
