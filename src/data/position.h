/* data/position.h -- positions of an iterator as bytes, and elements as messages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_POSITION_H
#define DATA_POSITION_H

#include "data/data.h"

/* Encodes the position of a tree of cursors. `hash` is the hash of its dataset, which a restore
 * compares. The caller must free *bytes with ch_bytes_free. No job of a workqueue may run
 * during the call. */
ch_status ch__position_save(ch_cursor *root, uint64_t hash, void **bytes, size_t *n);
/* Decodes a position from untrusted bytes. Fails if its format or the hash of its dataset
 * differs. The caller must free *out with ch__protobuf_free. */
ch_status ch__position_read(uint64_t hash, const void *bytes, size_t n, Cohort__Position **out);
/* Moves a tree of cursors to a position. The tree must have just been opened. After an error it
 * must be closed. */
ch_status ch__position_load(ch_cursor *root, const Cohort__Position *position);

/* Encodes a part as a message. Its memory, including a copy of the data, belongs to the arena.
 * `name` may be NULL. */
ch_status ch__part_encode(ch_arena *a, const ch_part *p, const char *name, Cohort__Part **out);
/* Encodes all parts of an element into `out`, an initialised message. Memory as for
 * ch__part_encode. */
ch_status ch__element_encode(ch_arena *a, const ch_element *e, Cohort__Element *out);
/* Decodes an element from untrusted messages, one for each part. *out is a new element with a
 * copy of the data. Returns INVALID_ARGUMENT if a part is malformed. */
ch_status ch__parts_decode(size_t n, Cohort__Part *const *part, ch_element **out);

#endif
