/* cohort/schema.h -- schemas: the features of tf.train.Example records, and the columns of CSV
 * files.
 *
 * A schema is a list of fields. Each field of a record becomes a component of a dataset
 * element.
 *
 *     const ch_feature feature[] = {
 *         {.name = "image", .dtype = CH_F32, .shape = ch_shape_of(28, 28)},
 *         {.name = "label", .dtype = CH_I64}};
 *     const ch_csv_column column[] = {
 *         {.name = "age", .dtype = CH_I32, .missing = "0"},
 *         {.name = "city", .dtype = CH_STR}};
 *
 * Both types are plain values. Functions that take a schema copy it, names and texts included.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_SCHEMA_H
#define COHORT_SCHEMA_H

#include "cohort/shape.h"

/* A feature of a tf.train.Example. */
typedef struct ch_feature {
    const char *name;
    /* Dtype of the component, converted from int64, float or bytes. CH_U8: the raw bytes. */
    ch_dtype dtype;
    ch_shape shape; /* rank 0: a scalar; a first size of -1: as many values as the record has */
    /* true: if the feature is missing, the component is filled with `missing`, or is empty if
     * the first size is -1. false: a missing feature is an error. */
    bool        optional;
    double      missing;
    const char *missing_text; /* `missing` for CH_STR; NULL: "" */
} ch_feature;

/* A column of a CSV file, which becomes a scalar; or several adjacent columns, which become a
 * vector, such as the 784 pixels of an image. */
typedef struct ch_csv_column {
    /* Name of the component. If the file has a header, also the name of the (first) column. */
    const char *name;
    ch_dtype    dtype;
    const char *missing; /* text of an empty field; NULL: it is an error */
    int         field;   /* number of the first field, from 1; 0: by name, or else in order */
    int         fields;  /* fields of a vector, also 1; 0: a scalar of one field */
} ch_csv_column;

#endif
