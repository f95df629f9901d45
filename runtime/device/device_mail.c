/* What lets a whole step be put at once: the host's values pinned, so that copies never wait for
 * the host, and a mailbox of each device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_impl.h"

static bool has_host_part(const kt_placement *p) {
    for (int i = 0; i < p->n_segments; i++)
        if (p->segment[i].side != KT_SIDE_DEVICE) return true;
    return false;
}

/* Routing of one device for another: the host passes it on within the segment, and there is no part
 * of its own to do that in. */
static bool is_routing_passed_on(const kt_placement *p) {
    for (int i = 0; i < p->n_segments; i++)
        if (p->segment[i].routing_down && p->segment[i].routing_up) return true;
    return false;
}

/* Without it a step goes part by part: what cannot be pinned is no error. Of several devices each
 * is asked, as launches write letters: a GPU's driver maps what it has pinned for all GPUs, and
 * refuses it the second time (KT_E_INVALID); an emulated device knows its own pinned memory alone.
 */
static bool pin_values(kt_device_step *d) {
    const kt_buffer *values = &d->home->host->buffer;
    const kt_status st = kt_device_pin(d->device, values->data, values->bytes, NULL);

    return st == KT_OK || (st == KT_E_INVALID && d->home->setup->number > 0);
}

kt_status kt_device_mail_init(kt_device_step *d, kt_err *err) {
    const int most = 2 * d->home->placement->n_segments + 2;
    kt_mailbox_way way;

    KT_TRY(kt_mailbox_way_wanted(&way, err));
    if (way == KT_MAILBOX_NONE || !has_host_part(d->home->placement) ||
        is_routing_passed_on(d->home->placement) || most > KT_MAILBOX_MOST)
        return KT_OK;
    if (!pin_values(d)) return KT_OK;
    return kt_mailbox_create(d->device, way, most, &d->home->mail, err);
}

kt_mailbox *kt_device_step_mailbox(const kt_device_step *d) {
    return d->home->mail;
}

void kt_device_step_no_mail(kt_device_step *d) {
    kt_mailbox_destroy(d->home->mail);
    d->home->mail = NULL;
}

kt_status kt_device_step_gather(kt_device_step *d, bool eager, kt_err *err) {
    return kt_device_gather_begin(d->device, KT_STREAM_MAIN, eager, err);
}

kt_status kt_device_step_put(kt_device_step *d, kt_err *err) {
    return kt_device_gather_end(d->device, err);
}

kt_device_gathered kt_device_step_gathered(const kt_device_step *d) {
    return kt_device_gather_counts(d->device);
}
