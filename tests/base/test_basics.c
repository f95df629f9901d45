/* Random numbers, log lines, error messages. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"

Test(rng, same_seed_same_numbers) {
    kt_rng a, b, c;
    int differs = 0;
    kt_rng_seed(&a, 42);
    kt_rng_seed(&b, 42);
    kt_rng_seed(&c, 43);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = kt_rng_u64(&a);
        cr_assert_eq(x, kt_rng_u64(&b));
        differs += x != kt_rng_u64(&c);
    }
    cr_assert_geq(differs, 999);
}

/* 6 sigma bounds: mean of n uniforms has deviation 1 / sqrt(12 n), of n normals 1 / sqrt(n); the
 * mean square of normals sqrt(2 / n); a count of probability p sqrt(n p (1 - p)). */
Test(rng, distributions_have_their_moments) {
    enum { N = 200000, FACES = 7 };
    double uniform = 0, normal = 0, square = 0;
    int face[FACES] = {0};
    kt_rng rng;

    kt_rng_seed(&rng, 5);
    for (int i = 0; i < N; i++) {
        double u = kt_rng_double(&rng), z = kt_rng_normal(&rng);
        cr_assert(u >= 0 && u < 1 && isfinite(z));
        uniform += u;
        normal += z;
        square += z * z;
        face[kt_rng_below(&rng, FACES)]++;
    }
    cr_assert_leq(fabs(uniform / N - 0.5), 6 / sqrt(12.0 * N));
    cr_assert_leq(fabs(normal / N), 6 / sqrt(N));
    cr_assert_leq(fabs(square / N - 1), 6 * sqrt(2.0 / N));
    for (int i = 0; i < FACES; i++)
        cr_assert_leq(fabs(face[i] - (double)N / FACES), 6 * sqrt(N * (1.0 / FACES) * (6.0 / 7)));
}

static char *logged(kt_log log, kt_log_level level, const char *message) {
    char *text = NULL;
    size_t size = 0;
    log.stream = open_memstream(&text, &size);
    kt_log_write(&log, level, "area", "%s", message);
    fclose(log.stream);
    return text;
}

Test(log, one_message_is_one_line) {
    char *text = logged((kt_log){0}, KT_LOG_WARN, "two\nlines\x1b[31m");
    cr_assert(strstr(text, "warn  area: two lines [31m\n"), "%s", text);
    cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
    text = logged((kt_log){.level = KT_LOG_ERROR}, KT_LOG_WARN, "quiet");
    cr_assert_str_eq(text, "");
    free(text);
    kt_log_write(NULL, KT_LOG_ERROR, "a", "nobody listens");
    kt_log_write(&(kt_log){0}, KT_LOG_ERROR, "a", "nobody listens");
}

Test(log, json_lines_are_json) {
    char *text = logged((kt_log){.json = 1}, KT_LOG_INFO, "a \"b\"\n\xff");
    kt_json_doc *doc;
    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, NULL), KT_OK, "%s", text);
    cr_assert_str_eq(kt_json_string(kt_json_get(kt_json_root(doc), "level"), NULL), "info");
    cr_assert_str_eq(kt_json_string(kt_json_get(kt_json_root(doc), "msg"), NULL),
                     "a \"b\"\n\xef\xbf\xbd");
    kt_json_destroy(doc);
    free(text);
}

Test(log, long_messages_are_cut_visibly) {
    char message[9000], *text;
    memset(message, 'x', sizeof message);
    message[sizeof message - 1] = '\0';
    text = logged((kt_log){0}, KT_LOG_INFO, message);
    cr_assert_lt(strlen(text), 5000);
    cr_assert(strstr(text, "x...\n"));
    free(text);
}

Test(err, prefix_goes_in_front_and_never_overflows) {
    kt_err err;
    cr_assert_eq(kt_fail(&err, KT_E_IO, "tensor '%s'", "w"), KT_E_IO);
    cr_assert_eq(kt_fail_prefix(&err, KT_E_INTERNAL, "file %d", 3), KT_E_IO);
    cr_assert_str_eq(err.message, "file 3: tensor 'w'");
    for (int i = 0; i < 200; i++) kt_fail_prefix(&err, KT_E_IO, "%.*s", i, "0123456789");
    cr_assert_lt(strlen(err.message), KT_ERR_SIZE);
    cr_assert_eq(kt_fail(NULL, KT_E_IO, "x"), KT_E_IO);
    cr_assert_str_eq(kt_status_name(KT_E_FORMAT), "KT_E_FORMAT");
    cr_assert_str_eq(kt_status_name((kt_status)99), "KT_E_UNKNOWN");
}
