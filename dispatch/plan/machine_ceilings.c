/* What `kttune probe` measured of this machine. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/plan/machine_ceilings.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/plan/plan.h"

kt_status kt_machine_path(const kt_fingerprint *machine, char *out, size_t out_bytes, kt_err *err) {
    static const char file[] = "machine.json";
    char *slash;

    KT_TRY(kt_table_default_path(machine, "machine", 0, out, out_bytes, err));
    slash = strrchr(out, '/');
    if (!slash || (size_t)(slash + 1 - out) + sizeof file > out_bytes)
        return kt_fail(err, KT_E_INTERNAL, "%s: no room for the path of %s", out, file);
    memcpy(slash + 1, file, sizeof file);
    return KT_OK;
}

static kt_status read_ceilings(const char *path, const char *text, size_t size,
                               const kt_fingerprint *here, kt_ceilings *out, kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_fingerprint stored;
    kt_err why;
    kt_status st = kt_json_parse(text, size, NULL, &doc, err);

    if (st != KT_OK) return kt_fail_prefix(err, st, "%s", path);
    st = kt_fingerprint_read(kt_json_get(kt_json_root(doc), "fingerprint"), path, &stored, err);
    if (st == KT_OK) {
        kt_fingerprint bare = stored;
        memset(&bare.ceilings, 0, sizeof bare.ceilings);
        if (kt_fingerprint_compare(&bare, here, &why) == KT_MATCH_OTHER)
            st = kt_fail(err, KT_E_MISMATCH, "%s: %s", path, why.message);
        else
            *out = stored.ceilings;
    }
    kt_json_destroy(doc);
    return st;
}

kt_status kt_machine_load(const kt_topology *topology, kt_ceilings *out, kt_err *err) {
    char path[1024], *text = NULL;
    size_t size = 0;
    kt_fingerprint here;
    kt_status st;

    memset(out, 0, sizeof *out);
    kt_fingerprint_make(topology, NULL, &here);
    KT_TRY(kt_machine_path(&here, path, sizeof path, err));
    st = kt_file_read(path, 1 << 20, &text, &size, err);
    if (st == KT_E_IO) st = KT_E_NOT_FOUND;
    if (st != KT_OK) return st;
    st = read_ceilings(path, text, size, &here, out, err);
    free(text);
    return st;
}
