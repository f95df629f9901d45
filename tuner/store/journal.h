/* The journal: an append-only file of JSON lines, each with its checksum, that survives kill -9.
 *
 * A line is {"t":"<kind>",...,"crc":"5e1f00aa"}; the CRC-32 covers the bytes before ,"crc". A torn
 * last line is cut off when the file is opened; a line with a wrong checksum is skipped.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_JOURNAL_H
#define KT_TUNER_JOURNAL_H

#include <stdbool.h>

#include "base/json.h"

typedef struct kt_journal kt_journal;

/* Open or make the file and lock it against other tuners (KT_E_MISMATCH when it is locked already);
 * fresh forgets what it held. */
kt_status kt_journal_open(const char *path, bool fresh, kt_journal **out, kt_err *err);
void kt_journal_close(kt_journal *j);

/* Records that were in the file when it was opened, oldest first; they live until close. */
size_t kt_journal_count(const kt_journal *j);
const kt_json *kt_journal_at(const kt_journal *j, size_t i);
size_t kt_journal_dropped(const kt_journal *j); /* damaged lines */

/* Append one record, a JSON object written by w on one line. One write call per record, so that a kill
 * leaves the record or a torn line, never a mixture. A power cut may cost the last second. */
kt_status kt_journal_append(kt_journal *j, const kt_json_writer *w, kt_err *err);

/* Where the journal of a table lies: "x.kttable.json" -> "x.journal.jsonl". KT_E_INVALID when that is
 * longer than out. */
kt_status kt_journal_path_of(const char *table_path, char *out, size_t out_bytes, kt_err *err);

/* Read only, without lock: for reports. Where only path.gz exists (zipped.h), that is read. */
kt_status kt_journal_read(const char *path, kt_journal **out, kt_err *err);

#endif
