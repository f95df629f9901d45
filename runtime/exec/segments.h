/* A step that a device takes part in (place.h). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SEGMENTS_H
#define KT_RUNTIME_SEGMENTS_H

#include "runtime/exec/step.h"

/* What a step with s->place needs in its arena. */
kt_status kt_segments_init(kt_step *s, kt_err *err);

/* Run the step's rows, already numbered and embedded, over s->place. KT_E_CANCELLED: stop was seen.
 * Other errors are the device's, after which nothing more is done with it. When it returns the
 * device has done all that it was given. */
kt_status kt_segments_run(kt_step *s, const kt_step_program *program, kt_pool *pool,
                          const atomic_bool *stop, kt_err *err);

#endif
