/* Writing safetensors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/numeric.h"
#include "dispatch/model/checkpoint.h"

static kt_status tensor_bytes(const kt_tensor_out *t, uint64_t *bytes, kt_err *err) {
    *bytes = kt_dtype_bytes(t->dtype);
    if (t->rank < 0 || t->rank > KT_TENSOR_MAX_RANK)
        return kt_fail(err, KT_E_INVALID, "tensor '%.100s': rank %d", t->name, t->rank);
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || kt_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes))
            return kt_fail(err, KT_E_INVALID, "tensor '%.100s': impossible shape", t->name);
    return KT_OK;
}

static kt_status write_header(kt_json_writer *w, const kt_tensor_out *tensors, size_t count,
                              kt_err *err) {
    uint64_t offset = 0;

    kt_json_begin_object(w);
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;
        KT_TRY(tensor_bytes(&tensors[i], &bytes, err));
        kt_json_key(w, tensors[i].name);
        kt_json_begin_object(w);
        kt_json_add_string(w, "dtype", kt_dtype_name(tensors[i].dtype));
        kt_json_key(w, "shape");
        kt_json_begin_array(w);
        for (int d = 0; d < tensors[i].rank; d++) kt_json_put_int(w, tensors[i].shape[d]);
        kt_json_end_array(w);
        kt_json_key(w, "data_offsets");
        kt_json_begin_array(w);
        kt_json_put_int(w, (int64_t)offset);
        if (kt_add_overflow(offset, bytes, &offset) || offset > INT64_MAX)
            return kt_fail(err, KT_E_INVALID, "the tensors are too large for one file");
        kt_json_put_int(w, (int64_t)offset);
        kt_json_end_array(w);
        kt_json_end_object(w);
    }
    kt_json_end_object(w);
    return KT_OK;
}

static int write_all(FILE *f, const char *header, size_t header_bytes, const kt_tensor_out *tensors,
                     size_t count) {
    size_t padded = (header_bytes + 7) / 8 * 8; /* data starts at a multiple of 8 */
    unsigned char size[8];

    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    if (fwrite(size, 1, 8, f) != 8 || fwrite(header, 1, header_bytes, f) != header_bytes) return -1;
    if (fwrite("       ", 1, padded - header_bytes, f) != padded - header_bytes) return -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;
        if (tensor_bytes(&tensors[i], &bytes, NULL) != KT_OK) return -1;
        if (bytes && fwrite(tensors[i].data, 1, (size_t)bytes, f) != bytes) return -1;
    }
    return fflush(f) == 0 && fsync(fileno(f)) == 0 ? 0 : -1;
}

kt_status kt_safetensors_write(const char *path, const kt_tensor_out *tensors, size_t count,
                               kt_err *err) {
    kt_json_writer w = {0};
    char *temporary = NULL;
    const char *header;
    size_t header_bytes = 0;
    FILE *f = NULL;
    kt_status st = write_header(&w, tensors, count, err);

    if (st != KT_OK) goto done;
    header = kt_json_writer_text(&w, &header_bytes);
    if (!header || asprintf(&temporary, "%s.%ld.tmp", path, (long)getpid()) < 0) {
        temporary = NULL;
        st = kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the header", path);
        goto done;
    }
    f = fopen(temporary, "wb");
    if (!f || write_all(f, header, header_bytes, tensors, count) != 0)
        st = kt_fail(err, KT_E_IO, "%.200s: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && st == KT_OK)
        st = kt_fail(err, KT_E_IO, "%.200s: %s", path, strerror(errno));
    if (st == KT_OK && rename(temporary, path) != 0)
        st = kt_fail(err, KT_E_IO, "%.200s: %s", path, strerror(errno));
    if (st != KT_OK && f) unlink(temporary);
done:
    kt_json_writer_deinit(&w);
    free(temporary);
    return st;
}
