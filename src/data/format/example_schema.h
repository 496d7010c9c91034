/* data/format/example_schema.h -- the features of an example schema; private to
 * data/format/example.c and data/format/example_schema.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_EXAMPLE_SCHEMA_H
#define DATA_FORMAT_EXAMPLE_SCHEMA_H

#include "data/format/example.h"
#include "data/format/names.h"

typedef struct ch_example_feature {
    const char *name;
    ch_part     part; /* the part of an element; its data is the default of a missing feature */
    int64_t     count;  /* required number of values; if `varies`, of a row */
    size_t      bytes;  /* of a value */
    bool        varies; /* the first size is -1 */
    bool        optional;
} ch_example_feature;

struct ch_example_schema {
    ch_arena            arena;
    int                 n;
    ch_example_feature *feature;  /* n */
    ch_names            names;    /* names of the features, by index */
    ch_tensor_spec     *spec;     /* n */
    ch_buffer          *defaults; /* data of missing features; NULL: no feature has a default */
};

#endif
