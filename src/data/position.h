/* data/position.h -- places in a pipeline, as bytes.   SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_POSITION_H
#define DATA_POSITION_H

#include "data/data.h"

/* The place of a tree of cursors; `dataset` tells which description it belongs to. Nobody works
 * ahead meanwhile. */
ch_status ch__position_save(ch_cursor *root, uint64_t dataset, void **bytes, size_t *n);
/* What bytes from anywhere say, for ch__protobuf_free; and into a tree just opened. */
ch_status ch__position_read(uint64_t dataset, const void *bytes, size_t n,
                            Cohort__Position **out);
ch_status ch__position_load(ch_cursor *root, const Cohort__Position *place);

/* A part as a message whose memory is of the arena; its bytes are where they were. */
ch_status ch__part_encode(ch_arena *a, const ch_part *p, const char *name, Cohort__Part **out);
/* All parts of an element, likewise, into a message that was initialised. */
ch_status ch__element_encode(ch_arena *a, const ch_element *e, Cohort__Element *out);
/* All parts of one element, checked; the bytes are copied. */
ch_status ch__parts_decode(size_t n, Cohort__Part *const *part, ch_element **out);

#endif
