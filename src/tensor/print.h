/* tensor/print.h -- building text in a caller's buffer, the way snprintf does.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_PRINT_H
#define TENSOR_PRINT_H

#include "tensor/tensor.h"

/* Text in the making. What does not fit is counted and dropped; what is there always ends
 * in a zero byte, unless `size` is 0. */
typedef struct ch_text {
    char  *text;
    size_t size;
    size_t used;   /* the length that is needed */
    int    indent; /* of lines that what is added begins */
} ch_text;

ch_text ch__text(char *text, size_t size);
void    ch__text_add(ch_text *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
int     ch__text_length(const ch_text *o); /* what snprintf would return */

void ch__text_shape(ch_text *o, ch_shape shape);
void ch__text_tensor(ch_text *o, const ch_tensor *t);
void ch__text_elements(ch_text *o, const ch_tensor *t);            /* without dtype and shape */
void ch__text_element(ch_text *o, ch_dtype dtype, const void *at); /* one of them */
/* As a tensor over contiguous elements is printed. */
void ch__text_array(ch_text *o, ch_dtype dtype, ch_shape shape, const void *data);
void ch__text_value(ch_text *o, const ch_value *v);

/* "f32(5, 2)", for messages. */
typedef struct ch_label {
    char text[200];
} ch_label;
ch_label ch__label(ch_dtype dtype, ch_shape shape);
ch_label ch__tensor_label(const ch_tensor *t);

#endif
