/* Version of the project and of the library's binary interface.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_VERSION_H
#define KT_VERSION_H

#define KT_VERSION "0.1.0"

/* Raised when a program that was compiled before would not run with the library any more. */
#define KT_ABI_VERSION 1

/* Marks what the shared library exports. */
#if defined __GNUC__
#define KT_API __attribute__((visibility("default")))
#else
#define KT_API
#endif

#endif
