/* data/example.h -- tf.train.Example: a record's features as the parts of an element.
 *
 *     ch_example_schema *s = NULL;
 *     rc = ch__example_schema_new(2, feature, &s);
 *     rc = ch__example_parse(s, record, &e);      // record: one string, which is the message
 *
 * Nothing is copied that need not be: lists of floats (packed, as f32), bytes as u8 and strings
 * stay where the record is, and the element takes over the record's owners. What is decoded
 * (int64 lists, other conversions) lies in the element's room, which is never larger than what the
 * values that are really there take: eight times the record's bytes at most.
 *
 * What is no message is DATA_LOSS, with the byte; a message that does not fit the schema is
 * INVALID_ARGUMENT, with the feature, what it has and what was wanted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_EXAMPLE_H
#define DATA_EXAMPLE_H

#include "cohort/schema.h"
#include "data/element.h"

/* The features, looked at once. Does not change: any number of threads may parse with it. */
typedef struct ch_example_schema ch_example_schema;

CH_MUST_CHECK ch_status ch__example_schema_new(int n, const ch_feature *feature,
                                               ch_example_schema **out);
/* NULL is fine. Elements that were parsed with it live on. */
void ch__example_schema_free(ch_example_schema *s);

/* The components of what it parses to; the array and its names are the schema's. */
int ch__example_schema_spec(const ch_example_schema *s, const ch_tensor_spec **out);

/* Takes `record` over, on an error too, which names the file if the record knows it. DATA_LOSS: it is
 * no example; INVALID_ARGUMENT: it is not what the schema asks for. */
CH_MUST_CHECK ch_status ch__example_parse(const ch_example_schema *s, ch_element *record,
                                          ch_element **out);

#endif
