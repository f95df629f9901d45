/* How fast a checkpoint's bytes can be had at all, for comparison with how fast it is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_READ_RATE_H
#define KT_RUNTIME_READ_RATE_H

#include "base/pool.h"
#include "dispatch/model/checkpoint.h"

typedef struct kt_read_rate {
    size_t bytes;        /* of all tensors */
    double read_seconds; /* mapped, summed up and given back, by all threads */
    size_t copied;       /* as many of them as half of the free memory holds */
    double copy_seconds; /* mapped, copied to memory that had no pages yet, and given back */
} kt_read_rate;

/* Read and copy all tensors of a checkpoint, or of a converted folder's panels, by the pool's
 * threads. What the disk or the page cache gives is what is measured. KT_E_NOMEM when there is no
 * memory to copy to. */
kt_status kt_read_rate_measure(const kt_checkpoint *c, kt_pool *pool, kt_read_rate *out,
                               kt_err *err);

#endif
