/* Tests of kernels on a device: their launches under the emulator go to it as they are.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_EMULATE_ON_H
#define KT_TESTS_EMULATE_ON_H

#include <stdbool.h>

#include "kernels/cuda/emulator.h"

/* Programs whose names begin with test_cuda_ are linked so that their calls of kt_emulate come to
 * support/emulate_on.c. With KT_TEST_DEVICE=cuda (or emulated) a launch of a built-in kernel runs
 * on that device, whose memory the test's own becomes for the time. Without it, for kernels of
 * tests and for those that are not for this device, the emulator runs it. So every test of a kernel
 * is also one of the kernel on a GPU. */
/* Whether a GPU runs them: its exponentials, within the bounds of kt_dev.h, and the signs of its
 * NaNs are its own. */
bool kt_emulates_on_gpu(void);

kt_status __real_kt_emulate(const kt_launch *launch, const kt_emulator_options *options,
                            kt_err *err);
kt_status __wrap_kt_emulate(const kt_launch *launch, const kt_emulator_options *options,
                            kt_err *err);

#endif
