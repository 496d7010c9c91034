/* fuzz/job/calls.h -- calls to servers and workers, from bytes.
 *
 * A message is built field by field, or consists of arbitrary bytes. It carries tensors of a few kinds. Graphs, step plans and
 * datasets are valid, or valid with some bits flipped.
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
    bool           is_turned; /* bits of a graph, step plan or dataset were flipped */
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
