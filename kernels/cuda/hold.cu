/* Holds a stream until the host lets it go, so that what is put behind it is all there before the
 * first of it starts: a stopwatch then sees none of the host's time. One warp, grid (1, 1).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/hold_calls.h"

KT_DEVICE void hold(const kt_hold *p) {
    const volatile uint32_t *go = p->go;

    if (kt_thread() > 0) return;
    for (uint32_t i = 0; i < p->most; i++)
        if (*go) return;
}

KT_ENTRY(hold_stream, kt_hold, hold, 32)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(hold) = {
    .name = "hold",
    .about = "holds a stream until the host lets it go, for stopwatches",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .param_count = 0,
    .entry_count = 1,
    .entry = {{"hold_stream", hold_stream}},
    KT_CUDA_ONE_WARP,
};
#endif
