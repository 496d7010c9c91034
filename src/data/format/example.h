/* data/format/example.h -- parses tf.train.Example records: features become the parts of an
 * element.
 *
 *     ch_example_schema *s = NULL;
 *     rc = ch__example_schema_new(2, feature, &s);
 *     rc = ch__example_parse(s, record, &e);      // record: a string scalar, the message
 *
 * Data is not copied if possible: packed float lists (as f32), bytes as u8, and strings stay in
 * the memory of the record, and the element takes over the owners of the record. Decoded values
 * (int64 lists, other conversions) lie in the room of the element. The room is never larger
 * than the values that are really in the record need: at most eight times the bytes of the
 * record.
 *
 * Bytes that are not a valid message are CH_DATA_LOSS; the message gives the byte. An Example
 * that does not match the schema is CH_INVALID_ARGUMENT; the message gives the feature, its
 * contents and the expected contents.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_EXAMPLE_H
#define DATA_FORMAT_EXAMPLE_H

#include "cohort/schema.h"
#include "data/element.h"

/* The checked features. A schema does not change once created, so any number of threads may
 * parse with it. */
typedef struct ch_example_schema ch_example_schema;

CH_MUST_CHECK ch_status ch__example_schema_new(int n, const ch_feature *feature,
                                               ch_example_schema **out);
/* Frees the schema; NULL is allowed. Elements that were parsed with it stay valid. */
void ch__example_schema_free(ch_example_schema *s);

/* Returns the number of components of an element, and their specs in *out. The schema owns the
 * specs and names. */
int ch__example_schema_spec(const ch_example_schema *s, const ch_tensor_spec **out);

/* Parses a record. Takes ownership of `record`, even on error. Returns CH_DATA_LOSS if the
 * record is not an Example, and CH_INVALID_ARGUMENT if the Example does not match the schema.
 * The message names the file if the record has an origin. */
CH_MUST_CHECK ch_status ch__example_parse(const ch_example_schema *s, ch_element *record,
                                          ch_element **out);

#endif
