/* Walking this process's control groups, version 1 and 2. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_CGROUP_H
#define KT_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KT_CGROUP_PATH_BYTES 4096

typedef struct kt_cgroup {
    char folder[KT_CGROUP_PATH_BYTES]; /* e.g. /sys/fs/cgroup/system.slice/x.service */
    size_t root_size;                  /* length of the mount point's part */
    int version;                       /* 1 or 2 */
} kt_cgroup;

/* The group that limits this process for a controller ("memory", "cpu"); false when there is none.
 * Limits hold along the whole way up: visit each with kt_cgroup_parent until it says false. */
bool kt_cgroup_first(kt_cgroup *group, const char *controller);
bool kt_cgroup_parent(kt_cgroup *group);

/* The decimal number a file starts with; false when it does not (absent, "max", negative). */
bool kt_cgroup_read(const char *path, uint64_t *out);

#endif
