/* Ctrl-C as a question. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_INTERRUPT_H
#define KT_RUNTIME_INTERRUPT_H

/* From now on SIGINT and SIGTERM are remembered; the second one ends the process as usual. */
void kt_interrupt_watch(void);
/* Nonzero once a signal came. A kt_cancel_fn. */
int kt_interrupted(void *unused);

#endif
