/* data/format/libsvm.h -- parses a line of LibSVM text into an element.
 *
 *     label [qid:n] index:value index:value ... [# comment]
 *
 * Indices may come in any order. An index that occurs twice in a line is an error. The query
 * number (qid) is ignored.
 *
 * Dense elements: "x" f32 (n_features), with 0 for the indices that the line does not have, and
 * "y" f32 (), the label. Sparse elements: "ids" i64 (?), counted from 0 and in the order of the
 * line, "values" f32 (?) and "y" f32 ().
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_LIBSVM_H
#define DATA_FORMAT_LIBSVM_H

#include "data/element.h"

typedef struct ch_libsvm {
    int64_t n_features; /* 0: no limit; allowed only if `sparse` is true */
    bool    from_zero;  /* the first index in the text is 0, not 1 */
    bool    sparse;     /* the elements are sparse */
} ch_libsvm;

/* Returns INVALID_ARGUMENT if n_features is out of range. */
CH_MUST_CHECK ch_status ch__libsvm_check(const ch_libsvm *o);
/* Writes the specs of the components and returns their number: 2 if dense, 3 if sparse. */
int ch__libsvm_spec(const ch_libsvm *o, ch_tensor_spec out[3]);

/* Parses a line, given without its line end. *out is a new element that the caller must free;
 * it is NULL if the line has only blanks and a comment. Returns DATA_LOSS if the line is
 * malformed. The caller should add the file and the line number to the message
 * (ch__fail_at). */
CH_MUST_CHECK ch_status ch__libsvm_parse(const ch_libsvm *o, ch_str line, ch_element **out);

#endif
