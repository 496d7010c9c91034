/* cohort/schema.h -- what the fields of a record are: features of examples, columns of CSV.
 *
 *     const ch_feature feature[] = {{.name = "image", .dtype = CH_F32, .shape = ch_shape_of(28, 28)},
 *                                   {.name = "label", .dtype = CH_I64}};
 *     const ch_csv_column column[] = {{.name = "age", .dtype = CH_I32, .missing = "0"},
 *                                     {.name = "city", .dtype = CH_STR}};
 *
 * Both are plain values; what takes them copies them, names and texts too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_SCHEMA_H
#define COHORT_SCHEMA_H

#include "cohort/shape.h"

/* A feature of a tf.train.Example, and the component that is made of it. */
typedef struct ch_feature {
    const char *name;
    ch_dtype    dtype; /* of the component: from int64, float, bytes; u8: bytes as they are */
    ch_shape    shape; /* rank 0 is a scalar; a first size of -1: as many as there are */
    bool        optional; /* one that is missing is `missing`, or empty where the size is -1 */
    double      missing;
    const char *missing_text; /* of CH_STR */
} ch_feature;

/* A column of a CSV file, and the scalar that is made of its field; or several columns that follow one
 * another, and the vector that is made of them: the 784 pixels of a line are one component. */
typedef struct ch_csv_column {
    const char *name; /* in the header, if there is one; the component's name */
    ch_dtype    dtype;
    const char *missing; /* what an empty field means; NULL: it is an error */
    int         field;   /* 1 is the first; 0: found by name in the header, or else in order */
    int         fields;  /* so many from there on, as a vector; 0: one, as a scalar */
} ch_csv_column;

#endif
