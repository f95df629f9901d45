/* A function that is there only where it is called. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INLINE_H
#define KT_KERNELS_INLINE_H

/* Its arguments are constants where the caller's are: kernels are compiled so for each format. */
#define KT_INLINE static inline __attribute__((always_inline))

#endif
