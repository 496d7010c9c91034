/* data/csv_schema.h -- what data/csv.c knows of the columns that it looks for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_CSV_SCHEMA_H
#define DATA_CSV_SCHEMA_H

#include "data/csv.h"
#include "data/names.h"

enum { CH_CSV_FIELDS = 1 << 20 /* of all columns, at most */ };

/* A scalar of any type. */
typedef union ch_csv_slot {
    char   number[8];
    ch_str text;
} ch_csv_slot;

typedef struct ch_csv_known {
    ch_csv_column as_asked; /* its texts are the schema's */
    ch_csv_slot   missing;  /* if as_asked.missing is not NULL */
    int           n;        /* fields that it has */
    int           first;    /* which of all fields that are asked for is its first */
    size_t        offset;   /* of its component in an element's room */
} ch_csv_known;

struct ch_csv_schema {
    ch_arena        arena;
    int             n;
    ch_csv_known   *column;
    ch_tensor_spec *spec;
    int             n_fields;   /* of all columns together */
    size_t          room_bytes; /* of an element, its texts apart */
    ch_names        names;      /* of all columns, by their indices */
    char            separator;
    bool            has_header;
};

#endif
