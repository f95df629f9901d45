/* A table row as a JSON object, for journals and --json output. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_ROW_JSON_H
#define KT_TUNER_ROW_JSON_H

#include "base/json.h"
#include "dispatch/table/table.h"

void kt_row_write(const kt_table_row *row, kt_json_writer *w);
kt_status kt_row_read(const kt_json *object, const char *where, kt_table_row *out, kt_err *err);

#endif
