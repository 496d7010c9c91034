/* fuzz/job/calls.h -- calls to servers and workers, from bytes.
 *
 * A message is put together field by field, or is any bytes at all; beside it are tensors of a few kinds. Graphs, routes and datasets
 * are real ones, or real ones with some bits turned.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_CALLS_H
#define FUZZ_JOB_CALLS_H

#include "fuzz.h"
#include "net/net.h"

enum { MOST_FIELDS = 256 };

/* What is left of an input. */
typedef struct source {
    const uint8_t *data;
    size_t         left;
    bool           is_turned; /* a graph, route or dataset was not what it was */
    int            n_fields;
    void          *field[MOST_FIELDS]; /* memory of the message that is being made */
} source;

typedef struct one_call {
    uint32_t    method;
    bool        of_worker; /* or of the server */
    ch_message *message;
} one_call;

void     calls_init(void);     /* once, before the others */
uint8_t  next_byte(source *s); /* 0: there is none left */
one_call next_call(source *s);

#endif
