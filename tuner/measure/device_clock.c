/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/device_clock.h"

#include <string.h>

#include "base/err.h"
#include "kernels/cuda/hold_calls.h"

static const uint32_t most_looks = 1u << 22; /* about 4 s of looks over a link, then it goes on */

kt_status kt_device_clock_start(kt_device *d, kt_device_clock *out, kt_err *err) {
    kt_status st;

    *out = (kt_device_clock){.d = d};
    st = kt_device_host_alloc(d, sizeof *out->go, (void **)&out->go, err);
    if (st == KT_OK) st = kt_device_event_make(d, &out->from, err);
    if (st == KT_OK) st = kt_device_event_make(d, &out->to, err);
    if (st == KT_OK) st = kt_device_kernel_named(d, "hold", NULL, 0, &out->hold, err);
    if (st != KT_OK) kt_device_clock_stop(out);
    return st;
}

void kt_device_clock_stop(kt_device_clock *c) {
    if (c->d && c->go) kt_device_host_free(c->d, c->go);
    memset(c, 0, sizeof *c);
}

kt_status kt_device_clock_time(kt_device_clock *c, kt_device_work *put, void *arg, int n,
                               double *ns, kt_err *err) {
    const kt_hold hold = {c->go, most_looks, 0};
    kt_status st;
    double ms = 0;

    *(volatile uint32_t *)c->go = 0;
    st = kt_device_kernel_run(c->d, &c->hold, 0, 1, 1, 0, &hold, sizeof hold, err);
    if (st == KT_OK) st = kt_device_record(c->d, KT_STREAM_MAIN, c->from, err);
    for (int i = 0; i < n && st == KT_OK; i++) st = put(arg, i, err);
    if (st == KT_OK) st = kt_device_record(c->d, KT_STREAM_MAIN, c->to, err);
    *(volatile uint32_t *)c->go = 1;
    KT_TRY(st);
    KT_TRY(kt_device_sync(c->d, c->to, err));
    KT_TRY(kt_device_elapsed(c->d, c->from, c->to, &ms, err));
    *ns = ms * 1e6 / n;
    return KT_OK;
}
