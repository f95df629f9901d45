/* Room for Criterion's arena under ThreadSanitizer of gcc on x86-64.
 *
 * Criterion asks mincore() for a free address between 0x200000000000 and 0x600000000000 and maps its arena there.
 * ThreadSanitizer protects the gaps of its address plan in that range (tsan_platform.h, "C/C++ on linux/x86_64"),
 * so that none looks free, and refuses to map outside of the program's areas. The gaps are given to the arena where
 * the sanitizer's formula gives them a shadow that it has mapped. That shadow may also be another address's, but an
 * arena of 128 KiB at random in 2^42 bytes does not meet one.
 *
 * Linked into test programs of the preset tsan only, and not instrumented: the first calls come before the
 * sanitizer is ready. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__interceptor_mmap(void *at, size_t bytes, int protection, int flags, int fd, off64_t from);

static bool in_gap(const void *at) {
    const uintptr_t a = (uintptr_t)at;
    const uintptr_t shadow = 2 * ((a & 0x07ffffffffff) ^ 0x040000000000);

    return ((a >= 0x200000000000 && a < 0x300000000000) ||
            (a >= 0x340000000000 && a < 0x550000000000)) &&
           shadow >= 0x010000000000;
}

int mincore(void *at, size_t bytes, unsigned char *pages) {
    if (in_gap(at)) {
        errno = ENOMEM; /* nothing is mapped */
        return -1;
    }
    return (int)syscall(SYS_mincore, at, bytes, pages);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t from) {
    if (in_gap(at)) return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, from);
    return __interceptor_mmap(at, bytes, protection, flags, fd, from);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t from) {
    return mmap64(at, bytes, protection, flags, fd, from);
}
