/* data/libsvm.h -- a line of LibSVM text as an element.
 *
 *     label [qid:n] index:value index:value ... [# comment]
 *
 * Indices come in any order, each once. Dense elements are "x" f32 (n_features), 0 where nothing
 * is said, and "y" f32 (), the label; sparse ones are "ids" i64 (?), counted from 0 and in
 * the line's order, "values" f32 (?) and "y".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_LIBSVM_H
#define DATA_LIBSVM_H

#include "data/element.h"

typedef struct ch_libsvm {
    int64_t n_features; /* 0: any number, of sparse elements alone */
    bool    from_zero;  /* the first index is 0, not 1 */
    bool    sparse;
} ch_libsvm;

/* INVALID_ARGUMENT for numbers of features that cannot be. */
CH_MUST_CHECK ch_status ch__libsvm_check(const ch_libsvm *o);
/* The components, two or three. */
int ch__libsvm_spec(const ch_libsvm *o, ch_tensor_spec out[3]);

/* A line without its end. *out is NULL if there is nothing in it but blanks and a comment. What is
 * wrong with it is DATA_LOSS; whoever knows the file and the line says them (ch__fail_at). */
CH_MUST_CHECK ch_status ch__libsvm_parse(const ch_libsvm *o, ch_str line, ch_element **out);

#endif
