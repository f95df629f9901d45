/* Devices by their words on the command line. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_DEVICE_WORD_H
#define KT_DEVICE_DEVICE_WORD_H

#include <stdbool.h>

#include "dispatch/device/device.h"

enum {
    KT_DEVICES_MOST = 16, /* that take part in one model */
    KT_DEVICE_ALL = -1    /* an ordinal: all GPUs that there are */
};

/* "cpu" (or NULL): *is_used becomes false. "cuda", "cuda:1", "emulated", or an emulated device
 * with parts behind a colon, divided by commas: memory=64M, threads=2, target=90a, seed=5, lazy,
 * races, fail-after=100 (launches until it is lost). The log is left as it is. KT_E_INVALID says
 * what is expected, also where several devices are named. */
kt_status kt_device_word_parse(const char *word, bool *is_used, kt_device_options *out,
                               kt_err *err);

/* Any number of them, in the order of a model's layers: such words divided by '+', "cuda:0,2",
 * "cuda:all" (one entry with the ordinal KT_DEVICE_ALL) and "emulated*3:memory=64M". out:
 * [KT_DEVICES_MOST], of which all begin as out[0] is; *n = 0: the CPU alone. KT_E_INVALID also
 * where a GPU is named twice. */
kt_status kt_device_words_parse(const char *word, kt_device_options *out, int *n, kt_err *err);

/* Open them: out [KT_DEVICES_MOST], owned by the caller; all of them or none. Errors are those of
 * kt_device_open. The log is borrowed by the devices; NULL = silent. */
kt_status kt_devices_open(const char *word, const kt_log *log, kt_device **out, int *n,
                          kt_err *err);

#endif
