/* A float is not finite when all bits of its exponent are set. Pieces that fit the first cache are
 * looked at without a branch inside, so that compilers use vectors; only a piece that has such a
 * number is searched. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/finite.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/p64_spec.h"

enum { PIECE = 4096 };

static int any16(const uint8_t *p, int64_t n, uint16_t exponent) {
    uint16_t any = 0;

    for (int64_t i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, p + 2 * i, sizeof x);
        any |= (uint16_t) - ((x & exponent) == exponent);
    }
    return any != 0;
}

static int any32(const uint8_t *p, int64_t n, uint32_t exponent) {
    uint32_t any = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, p + 4 * i, sizeof x);
        any |= 0u - ((x & exponent) == exponent);
    }
    return any != 0;
}

static int any64(const uint8_t *p, int64_t n) {
    const uint64_t exponent = UINT64_C(0x7ff) << 52;
    uint64_t any = 0;

    for (int64_t i = 0; i < n; i++) {
        uint64_t x;
        memcpy(&x, p + 8 * i, sizeof x);
        any |= (uint64_t)((x & exponent) == exponent);
    }
    return any != 0;
}

/* E4M3 has no infinity and its NaN is all ones; E5M2 is half a half; E8M0 has one NaN. */
static int any8(const uint8_t *p, int64_t n, uint8_t mask, uint8_t least) {
    uint8_t any = 0;

    for (int64_t i = 0; i < n; i++) any |= (uint8_t) - ((p[i] & mask) >= least);
    return any != 0;
}

static int has_nonfinite(kt_dtype dtype, const uint8_t *p, int64_t n) {
    switch (dtype) {
    case KT_DTYPE_BF16: return any16(p, n, 0x7f80);
    case KT_DTYPE_F16: return any16(p, n, 0x7c00);
    case KT_DTYPE_F32: return any32(p, n, 0x7f800000);
    case KT_DTYPE_F64: return any64(p, n);
    case KT_DTYPE_F8_E4M3: return any8(p, n, 0x7f, 0x7f);
    case KT_DTYPE_F8_E5M2: return any8(p, n, 0x7f, 0x7c);
    case KT_DTYPE_F8_E8M0: return any8(p, n, 0xff, 0xff);
    default: return 0;
    }
}

int64_t kt_tensor_find_nonfinite(const kt_tensor *t, int64_t begin, int64_t count) {
    const int64_t size = (int64_t)kt_dtype_bytes(t->dtype);
    const uint8_t *p = t->data + begin * size;

    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        if (!has_nonfinite(t->dtype, p + at * size, n)) continue;
        while (!has_nonfinite(t->dtype, p + at * size, 1)) at++;
        return begin + at;
    }
    return -1;
}

/* What an element that is not finite is. Of these types only E4M3 and E8M0 lack infinities. */
static const char *name_value(const kt_tensor *t, int64_t at) {
    const size_t size = kt_dtype_bytes(t->dtype);
    const uint8_t *p =
        t->data + (size_t)at * size; /* little-endian: the sign is in the last byte */
    const int mantissa_bits[KT_DTYPE_COUNT] = {[KT_DTYPE_BF16] = 7,
                                               [KT_DTYPE_F16] = 10,
                                               [KT_DTYPE_F32] = 23,
                                               [KT_DTYPE_F64] = 52,
                                               [KT_DTYPE_F8_E5M2] = 2};
    uint64_t bits = 0;

    for (size_t i = 0; i < size; i++) bits |= (uint64_t)p[i] << 8 * i;
    if (!mantissa_bits[t->dtype] || bits & ((UINT64_C(1) << mantissa_bits[t->dtype]) - 1))
        return "NaN";
    return p[size - 1] & 0x80 ? "-Inf" : "Inf";
}

/* "[3, 17]" of element `at`. */
static void format_position(const kt_tensor *t, int64_t at, char *out, size_t bytes) {
    int64_t position[KT_TENSOR_MAX_RANK];
    size_t used = (size_t)snprintf(out, bytes, "[");

    for (int d = t->rank - 1; d >= 0; d--) {
        position[d] = at % t->shape[d];
        at /= t->shape[d];
    }
    for (int d = 0; d < t->rank && used < bytes; d++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%lld", d ? ", " : "",
                                 (long long)position[d]);
    if (used < bytes) snprintf(out + used, bytes - used, "]");
}

static kt_status refuse(const kt_checkpoint *c, const kt_tensor *t, kt_err *err, const char *where,
                        const char *value) {
    static const char format[] =
        "%s is %s, expected finite numbers (a damaged file, or a failed training run; "
        "--allow-nonfinite loads it all the same)";

    if (c) return kt_tensor_fail(c, t, KT_E_FORMAT, err, format, where, value);
    kt_fail(err, KT_E_FORMAT, format, where, value);
    return kt_fail_prefix(err, KT_E_FORMAT, "tensor '%.100s'", t->name);
}

kt_status kt_tensor_check_finite(const kt_checkpoint *c, const kt_tensor *t, int64_t begin,
                                 int64_t count, kt_err *err) {
    int64_t at = kt_tensor_find_nonfinite(t, begin, count);
    char where[160] = "element ";

    if (at < 0) return KT_OK;
    format_position(t, at, where + strlen(where), sizeof where - strlen(where));
    return refuse(c, t, err, where, name_value(t, at));
}

/* ---- blocks ---- */

/* NULL, or what a half is that is not finite. */
static const char *bad_half(unsigned half) {
    if ((half & 0x7c00) != 0x7c00) return NULL;
    return half & 0x3ff ? "NaN" : half & 0x8000 ? "-Inf" : "Inf";
}

/* NULL, or what the head of a block has that is not finite. */
static const char *bad_head(const kt_format *format, int has_exponent, const uint8_t *block) {
    const int at[2] = {format->d_at, format->m_at};

    if (has_exponent && block[0] == 0xff) return "NaN";
    if (format->scale_of) return bad_half(format->scale_of(block));
    for (int i = 0; i < 2; i++) {
        const char *bad = NULL;
        if (at[i] >= 0) bad = bad_half((unsigned)(block[at[i]] | block[at[i] + 1] << 8));
        if (bad) return bad;
    }
    return NULL;
}

static kt_status check_blocks(const kt_checkpoint *c, const kt_tensor *t, kt_weight_format id,
                              int64_t k, int64_t row_begin, int64_t row_end, kt_err *err) {
    const kt_format *format = kt_format_find(id);
    const int has_exponent = kt_p64_spec_of(id).scale == KT_P64_E8M0;
    const int64_t blocks = k / format->block;
    char where[120];

    for (int64_t i = row_begin * blocks; i < row_end * blocks; i++) {
        const char *bad = bad_head(format, has_exponent, t->data + i * format->block_bytes);
        if (!bad) continue;
        snprintf(where, sizeof where, "the scale of block %lld of row %lld",
                 (long long)(i % blocks), (long long)(i / blocks));
        return refuse(c, t, err, where, bad);
    }
    return KT_OK;
}

/* ---- MXFP4 and MXFP8 ---- */

/* E8M0 has one NaN; U8 tensors hold the same bytes. t: exponents per 32 inputs. */
static kt_status check_exponents(const kt_checkpoint *c, const kt_matrix_source *s, int piece,
                                 const kt_tensor *t, int64_t begin, int64_t end, kt_err *err) {
    const int64_t blocks = s->k / 32;
    char where[160] = "element ";

    for (int64_t r = begin; r < end; r++) {
        const int64_t first = kt_matrix_source_row(s, piece, r) * blocks;
        const uint8_t *nan = memchr(t->data + first, 0xff, (size_t)blocks);
        if (!nan) continue;
        format_position(t, nan - t->data, where + strlen(where), sizeof where - strlen(where));
        return refuse(c, t, err, where, "NaN");
    }
    return KT_OK;
}

/* ---- matrices ---- */

kt_status kt_matrix_source_check_finite(const kt_checkpoint *c, const kt_matrix_source *s,
                                        int64_t row_begin, int64_t row_end, kt_err *err) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const kt_tensor *t = s->piece[i].tensor, *scales = s->piece[i].others[0];
        const int64_t offset = s->piece[i].first_row;
        int64_t first = row_begin > base ? row_begin - base : 0;
        int64_t last = row_end - base < s->piece[i].rows ? row_end - base : s->piece[i].rows;
        if (first >= last) continue;
        if (s->piece[i].fp8_scale) scales = s->piece[i].fp8_scale;
        if (s->piece[i].fp8_format == KT_W_MXFP8) {
            KT_TRY(check_exponents(c, s, i, scales, first, last, err));
        } else if (scales) {
            if (first == 0)
                KT_TRY(kt_tensor_check_finite(
                    c, scales, 0, (int64_t)(scales->bytes / kt_dtype_bytes(scales->dtype)), err));
        }
        if (s->piece[i].fp4_format == KT_W_MXFP4)
            KT_TRY(check_exponents(c, s, i, s->piece[i].fp4_scale, first, last, err));
        else if (s->piece[i].fp4_scale)
            KT_TRY(kt_tensor_check_finite(c, s->piece[i].fp4_scale, (offset + first) * (s->k / 16),
                                          (last - first) * (s->k / 16), err));
        if (s->piece[i].int4.packed || s->piece[i].fp4_scale) continue;
        if (s->piece[i].turned) {
            if (first == 0)
                KT_TRY(kt_tensor_check_finite(c, t, s->piece[i].first_input * s->piece[i].turned,
                                              s->k * s->piece[i].turned, err));
        } else if (t->blocks != KT_W_NONE)
            KT_TRY(check_blocks(c, t, t->blocks, s->k, offset + first, offset + last, err));
        else
            KT_TRY(
                kt_tensor_check_finite(c, t, (offset + first) * s->k, (last - first) * s->k, err));
    }
    return KT_OK;
}
