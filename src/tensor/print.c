/* tensor/print.c -- prints tensors, shapes and elements as text.
 *
 * A ch_text is a buffer of the caller that is filled step by step. The functions ch__text_*
 * append to it; the public ch_*_print functions are wrappers. Error messages use ch__label.
 *
 * Invariant: `used` counts all characters, including those that did not fit, so that its value
 * is the result of snprintf.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/print.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>

static const int64_t edge = 3;       /* elements shown at each end of a long axis */
static const size_t  str_shown = 64; /* bytes shown of a string */

ch_text ch__text(char *text, size_t size)
{
    if (text == NULL)
        size = 0;
    if (size > 0)
        text[0] = '\0';
    return (ch_text){.text = text, .size = size};
}

void ch__text_add(ch_text *o, const char *format, ...)
{
    bool    has_room = o->used < o->size;
    va_list args;

    va_start(args, format);
    int n = vsnprintf(has_room ? o->text + o->used : NULL, has_room ? o->size - o->used : 0,
                      format, args);
    va_end(args);
    o->used += n > 0 ? (size_t)n : 0;
}

int ch__text_length(const ch_text *o)
{
    return o->used < INT_MAX ? (int)o->used : INT_MAX;
}

/* Appends a shape as Python prints a tuple: "()", "(3,)", "(2, 3)". An unknown size is "?". */
void ch__text_shape(ch_text *o, ch_shape shape)
{
    if (shape.rank < 0 || shape.rank > CH_MAX_RANK) {
        ch__text_add(o, "(rank %d)", shape.rank);
        return;
    }
    ch__text_add(o, "(");
    for (int i = 0; i < shape.rank; i++) {
        if (i > 0)
            ch__text_add(o, ", ");
        if (shape.dim[i] == -1)
            ch__text_add(o, "?");
        else
            ch__text_add(o, "%" PRId64, shape.dim[i]);
    }
    ch__text_add(o, shape.rank == 1 ? ",)" : ")");
}

ch_label ch__label(ch_dtype dtype, ch_shape shape)
{
    ch_label label;
    ch_text  o = ch__text(label.text, sizeof(label.text));

    ch__text_add(&o, "%s", ch_dtype_name(dtype));
    ch__text_shape(&o, shape);
    return label;
}

ch_label ch__tensor_label(const ch_tensor *t)
{
    return ch__label(t->dtype, t->shape);
}

static void text_str(ch_text *o, const ch_str *s)
{
    size_t shown = s->size < str_shown ? s->size : str_shown;

    ch__text_add(o, "\"");
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)s->data[i];

        if (c == '"' || c == '\\')
            ch__text_add(o, "\\%c", c);
        else if (c == '\n')
            ch__text_add(o, "\\n");
        else if (c == '\t')
            ch__text_add(o, "\\t");
        else if (c == '\r')
            ch__text_add(o, "\\r");
        else if (c < 0x20 || c >= 0x7f)
            ch__text_add(o, "\\x%02x", c);
        else
            ch__text_add(o, "%c", c);
    }
    ch__text_add(o, shown < s->size ? "\"..." : "\"");
}

void ch__text_element(ch_text *o, ch_dtype dtype, const void *at)
{
    switch (dtype) {
    case CH_STR:
        text_str(o, at);
        break;
    case CH_BOOL:
        ch__text_add(o, "%s", *(const bool *)at ? "true" : "false");
        break;
    case CH_I64: /* a double would lose digits */
        ch__text_add(o, "%" PRId64, *(const int64_t *)at);
        break;
    case CH_U64:
        ch__text_add(o, "%" PRIu64, *(const uint64_t *)at);
        break;
    case CH_I8:
    case CH_I16:
    case CH_I32:
    case CH_U8:
    case CH_U16:
    case CH_U32:
        ch__text_add(o, "%.0f", ch__load(dtype, at));
        break;
    default: {
        double x = ch__load(dtype, at);

        ch__text_add(o, "%.6g", isnan(x) ? fabs(x) : x); /* never "-nan" */
    }
    }
}

/* Appends the separator of two neighbours along an axis: a space for the last axis, and for an
 * outer axis a newline for each axis inside it. The next line is indented to align with the
 * brackets. */
static void text_gap(ch_text *o, int rank, int axis)
{
    if (axis == rank - 1) {
        ch__text_add(o, " ");
        return;
    }
    for (int i = axis; i < rank - 1; i++)
        ch__text_add(o, "\n");
    ch__text_add(o, "%*s", o->indent + axis + 1, "");
}

/* Appends all brackets and separators up to the next shown element and moves `index` to it.
 * Returns false after the last element. */
static bool text_advance(ch_text *o, ch_shape shape, int64_t *index)
{
    int axis = shape.rank - 1;

    for (; axis >= 0 && ++index[axis] == shape.dim[axis]; axis--) {
        ch__text_add(o, "]");
        index[axis] = 0;
    }
    if (axis < 0)
        return false;
    text_gap(o, shape.rank, axis);
    if (index[axis] == edge && shape.dim[axis] > 2 * edge + 1) { /* "..." hides at least two */
        ch__text_add(o, "...");
        text_gap(o, shape.rank, axis);
        index[axis] = shape.dim[axis] - edge;
    }
    return true;
}

static void text_elements(ch_text *o, ch_dtype dtype, ch_shape shape, const int64_t *stride,
                          const char *data)
{
    const int64_t bytes = (int64_t)ch_dtype_bytes(dtype);
    int64_t       index[CH_MAX_RANK] = {0};

    if (ch_shape_count(shape) == 0) {
        ch__text_add(o, "[]");
        return;
    }
    do {
        int64_t at = 0;

        for (int i = shape.rank - 1; i >= 0 && index[i] == 0; i--)
            ch__text_add(o, "[");
        for (int i = 0; i < shape.rank; i++)
            at += index[i] * stride[i];
        ch__text_element(o, dtype, data + at * bytes);
    } while (text_advance(o, shape, index));
}

void ch__text_elements(ch_text *o, const ch_tensor *t)
{
    text_elements(o, t->dtype, t->shape, t->stride, t->data);
}

static void text_strided(ch_text *o, ch_dtype dtype, ch_shape shape, const int64_t *stride,
                         const void *data)
{
    ch__text_add(o, "tensor(%s ", ch_dtype_name(dtype));
    ch__text_shape(o, shape);
    ch__text_add(o, " ");
    text_elements(o, dtype, shape, stride, data);
    ch__text_add(o, ")");
}

void ch__text_array(ch_text *o, ch_dtype dtype, ch_shape shape, const void *data)
{
    int64_t stride[CH_MAX_RANK];

    ch__strides(shape, stride);
    text_strided(o, dtype, shape, stride, data);
}

void ch__text_tensor(ch_text *o, const ch_tensor *t)
{
    if (t == NULL) {
        ch__text_add(o, "NULL");
        return;
    }
    text_strided(o, t->dtype, t->shape, t->stride, t->data);
}

int ch_tensor_print(const ch_tensor *t, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_tensor(&o, t);
    return ch__text_length(&o);
}

int ch_tensor_spec_print(const ch_tensor_spec *spec, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    if (spec != NULL && spec->name != NULL)
        ch__text_add(&o, "%s: ", spec->name);
    ch__text_add(&o, "%s", spec != NULL ? ch__label(spec->dtype, spec->shape).text : "NULL");
    return ch__text_length(&o);
}
