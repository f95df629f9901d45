/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Is `word` one of the comma-separated words of list? */
static bool lists(const char *list, const char *word) {
    size_t n = strlen(word);

    for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
        if (strncmp(list, word, n) == 0 && (list[n] == '\0' || list[n] == ',')) return true;
    return false;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Set the group to mount + path. Inside a container the path seen in /proc may lie outside of what
 * is mounted; the mount's root is then our own group. */
static bool enter(kt_cgroup *group, const char *mount, const char *path, int version) {
    int n;

    if (!is_folder(mount)) return false;
    group->version = version;
    group->root_size = strlen(mount);
    n = snprintf(group->folder, sizeof group->folder, "%s%s", mount, path);
    if (n >= 0 && (size_t)n < sizeof group->folder) {
        if (n > 0 && group->folder[n - 1] == '/') group->folder[n - 1] = '\0';
        if (is_folder(group->folder)) return true;
    }
    snprintf(group->folder, sizeof group->folder, "%s", mount);
    return true;
}

/* A line of /proc/self/cgroup is "id:controllers:path"; version 2 has id 0 and no controllers. On
 * mixed systems the controller of version 1 is the one that acts, so it is preferred. */
bool kt_cgroup_first(kt_cgroup *group, const char *controller) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[KT_CGROUP_PATH_BYTES];
    char mount[64];
    bool found = false;

    if (!f) return false;
    while (fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        controllers++;
        if (*controllers == '\0' && !found) {
            found = enter(group, "/sys/fs/cgroup", path, 2);
        } else if (lists(controllers, controller)) {
            snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controller);
            if (enter(group, mount, path, 1)) {
                found = true;
                break;
            }
        }
    }
    fclose(f);
    return found;
}

bool kt_cgroup_parent(kt_cgroup *group) {
    char *slash = strrchr(group->folder, '/');

    if (!slash || (size_t)(slash - group->folder) < group->root_size) return false;
    *slash = '\0';
    return true;
}

bool kt_cgroup_read(const char *path, uint64_t *out) {
    FILE *f = fopen(path, "re");
    char text[64] = "";
    bool ok;

    if (!f) return false;
    ok = fgets(text, sizeof text, f) && isdigit((unsigned char)text[0]);
    fclose(f);
    if (ok) *out = strtoull(text, NULL, 10);
    return ok;
}
