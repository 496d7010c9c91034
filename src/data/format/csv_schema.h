/* data/format/csv_schema.h -- the columns of a CSV schema; private to data/format/csv.c and
 * data/format/csv_schema.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_CSV_SCHEMA_H
#define DATA_FORMAT_CSV_SCHEMA_H

#include "data/format/csv.h"
#include "data/format/names.h"

enum { CH_CSV_FIELDS = 1 << 20 /* limit of the fields of all columns together */ };

/* A scalar of any dtype. */
typedef union ch_csv_value {
    char   number[8];
    ch_str text;
} ch_csv_value;

typedef struct ch_csv_column_info {
    ch_csv_column declared; /* as the caller gave it; the schema owns the texts */
    ch_csv_value  missing;  /* value of an empty field; valid if declared.missing is not NULL */
    int           n;        /* fields of the column */
    int           first;    /* index of its first field among the fields of all columns */
    size_t        offset;   /* of its component in the room of an element */
} ch_csv_column_info;

struct ch_csv_schema {
    ch_arena            arena;
    int                 n;
    ch_csv_column_info *column;     /* n */
    ch_tensor_spec     *spec;       /* n */
    int                 n_fields;   /* of all columns together */
    size_t              room_bytes; /* of the room of an element, without texts */
    ch_names            names;      /* names of the columns, by index */
    char                separator;
    bool                has_header;
};

#endif
