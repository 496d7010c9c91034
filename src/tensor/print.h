/* tensor/print.h -- builds text in a buffer of the caller, as snprintf does.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_PRINT_H
#define TENSOR_PRINT_H

#include "tensor/tensor.h"

/* Text under construction. Characters that do not fit are counted and dropped. The text always
 * ends with a zero byte, unless `size` is 0. */
typedef struct ch_text {
    char  *text;
    size_t size;   /* of the buffer, in bytes */
    size_t used;   /* length of the whole text, including dropped characters */
    int    indent; /* of new lines, in columns */
} ch_text;

/* Begins a text in a buffer of `size` bytes. `text` may be NULL: the length is counted only. */
ch_text ch__text(char *text, size_t size);
void    ch__text_add(ch_text *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
int     ch__text_length(const ch_text *o); /* the result of snprintf */

void ch__text_shape(ch_text *o, ch_shape shape);
void ch__text_tensor(ch_text *o, const ch_tensor *t);              /* t may be NULL */
void ch__text_elements(ch_text *o, const ch_tensor *t);            /* without dtype and shape */
void ch__text_element(ch_text *o, ch_dtype dtype, const void *at); /* a single element */
/* Prints contiguous elements in the form of a tensor. */
void ch__text_array(ch_text *o, ch_dtype dtype, ch_shape shape, const void *data);
void ch__text_value(ch_text *o, const ch_value *v); /* v may be NULL */

/* A dtype and a shape for error messages, such as "f32(5, 2)". */
typedef struct ch_label {
    char text[200];
} ch_label;
ch_label ch__label(ch_dtype dtype, ch_shape shape);
ch_label ch__tensor_label(const ch_tensor *t);

#endif
