/* data/csv.h -- a line of CSV as an element of scalars and vectors.
 *
 *     rc = ch__csv_schema_new(n, column, ',', true, &schema);      // once
 *     rc = ch__csv_layout_new(schema, &header, &layout);           // for each file
 *     rc = ch__csv_parse(layout, record, &e);                      // for each record
 *
 * Text is copied into the element, so that it looks into nothing else. What is wrong with a record
 * is DATA_LOSS, with the number of the field, the column's name and the text; whoever knows the
 * file and the line puts them before that (ch__fail_at). Neither a schema nor a layout changes: any
 * number of threads may parse with one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_CSV_H
#define DATA_CSV_H

#include "cohort/schema.h"
#include "data/element.h"

/* The columns that are asked for, of any file. */
typedef struct ch_csv_schema ch_csv_schema;

/* A separator of 0 is a comma. */
CH_MUST_CHECK ch_status ch__csv_schema_new(int n, const ch_csv_column *column, char separator,
                                           bool has_header, ch_csv_schema **out);
void                    ch__csv_schema_free(ch_csv_schema *s); /* NULL is fine */
/* The components of an element; the array and its names are the schema's. */
int  ch__csv_schema_spec(const ch_csv_schema *s, const ch_tensor_spec **out);
char ch__csv_schema_separator(const ch_csv_schema *s);
bool ch__csv_schema_has_header(const ch_csv_schema *s);

/* Where the columns are in one file. Keeps the schema, which must outlive it. */
typedef struct ch_csv_layout ch_csv_layout;

/* `header` is the first record, where the schema has one; else NULL. INVALID_ARGUMENT if a column
 * is not there, or twice, with what there is. */
CH_MUST_CHECK ch_status ch__csv_layout_new(const ch_csv_schema *s, const ch_str *header,
                                           ch_csv_layout **out);
void                    ch__csv_layout_free(ch_csv_layout *l); /* NULL is fine */

/* A record without its line end. */
CH_MUST_CHECK ch_status ch__csv_parse(const ch_csv_layout *l, ch_str record, ch_element **out);

#endif
