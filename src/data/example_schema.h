/* data/example_schema.h -- what data/example.c knows of the features that it looks for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_EXAMPLE_SCHEMA_H
#define DATA_EXAMPLE_SCHEMA_H

#include "data/example.h"
#include "data/names.h"

typedef struct ch_example_feature {
    const char *name;
    ch_part     part;   /* as it will be; its data is what a missing feature has */
    int64_t     count;  /* values that it must have; where the first size is -1, of a row */
    size_t      bytes;  /* of a value */
    bool        varies; /* the first size is -1 */
    bool        optional;
} ch_example_feature;

struct ch_example_schema {
    ch_arena            arena;
    int                 n;
    ch_example_feature *feature;
    ch_names            names; /* of features, by their indices */
    ch_tensor_spec     *spec;
    ch_buffer          *defaults; /* the data of missing features; NULL: there are none */
};

#endif
