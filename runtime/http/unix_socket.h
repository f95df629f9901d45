/* A UNIX socket to listen on: a file that only its owner may connect to.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_UNIX_SOCKET_H
#define KT_RUNTIME_UNIX_SOCKET_H

#include <stdint.h>

#include "kt/status.h"

enum { KT_UNIX_PATH_BYTES = 108 }; /* the system's limit, with the NUL */

typedef struct kt_unix_socket {
    char path[KT_UNIX_PATH_BYTES]; /* "" = none */
    uint64_t device, inode;        /* of our file, */
    int64_t made_s, made_ns;       /* and when it was made: file systems use inodes again */
} kt_unix_socket;

/* Listen at path, mode 0600 from the first moment. A socket there that no program listens on any
 * more is replaced; one that is in use, or anything else of that name, is an error that says so and
 * stays. *fd is the caller's, non-blocking and closed on exec. */
kt_status kt_unix_socket_listen(const char *path, kt_unix_socket *out, int *fd, kt_err *err);
/* Remove the file, unless another has taken its place. Any number of times. */
void kt_unix_socket_remove(kt_unix_socket *s);

#endif
