/* data/format/csv.h -- parses a record of CSV to an element of scalars and vectors.
 *
 *     rc = ch__csv_schema_new(n, column, ',', true, &schema);      // once
 *     rc = ch__csv_layout_new(schema, &header, &layout);           // for each file
 *     rc = ch__csv_parse(layout, record, &e);                      // for each record
 *
 * Text is copied into the element, so the element does not point into other memory. An invalid
 * record is CH_DATA_LOSS; the message gives the number of the field, the name of the column and
 * the text. The caller adds the file and the line (ch__fail_at). Schemas and layouts do not
 * change once created, so any number of threads may use them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_CSV_H
#define DATA_FORMAT_CSV_H

#include "cohort/schema.h"
#include "data/element.h"

/* The columns to read, from any file. */
typedef struct ch_csv_schema ch_csv_schema;

/* Creates a schema. A separator of 0 stands for a comma. */
CH_MUST_CHECK ch_status ch__csv_schema_new(int n, const ch_csv_column *column, char separator,
                                           bool has_header, ch_csv_schema **out);
void                    ch__csv_schema_free(ch_csv_schema *s); /* NULL is allowed */
/* Returns the number of components of an element, and their specs in *out. The schema owns
 * them. */
int  ch__csv_schema_spec(const ch_csv_schema *s, const ch_tensor_spec **out);
char ch__csv_schema_separator(const ch_csv_schema *s);
bool ch__csv_schema_has_header(const ch_csv_schema *s);

/* The positions of the columns in a file. The schema must outlive the layout. */
typedef struct ch_csv_layout ch_csv_layout;

/* Creates a layout. `header` is the first record if the schema has a header, else NULL. Returns
 * CH_INVALID_ARGUMENT if a column is missing from the header or appears twice; the message
 * lists the names of the header. */
CH_MUST_CHECK ch_status ch__csv_layout_new(const ch_csv_schema *s, const ch_str *header,
                                           ch_csv_layout **out);
void                    ch__csv_layout_free(ch_csv_layout *l); /* NULL is allowed */

/* Parses a record, which must not include its line end. The caller owns *out. */
CH_MUST_CHECK ch_status ch__csv_parse(const ch_csv_layout *l, ch_str record, ch_element **out);

#endif
