/* fuzz/job/calls.h -- calls to servers and workers, from bytes.
 *
 * A message is built field by field, or consists of arbitrary bytes. It carries tensors of a
 * few kinds. Graphs, step plans and datasets are valid, or valid with some bits flipped.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_CALLS_H
#define FUZZ_JOB_CALLS_H

#include "fuzz.h"
#include "net/net.h"

enum { MOST_FIELDS = 256 };

/* The rest of an input, and the state of the message that is made from it. */
typedef struct source {
    const uint8_t *data;
    size_t         left;
    bool           is_turned; /* bits of a graph, step plan or dataset were flipped */
    int            n_fields;
    void          *field[MOST_FIELDS]; /* memory of the message that is being made */
} source;

typedef struct one_call {
    uint32_t    method;
    bool        of_worker; /* true: for the worker; false: for the server */
    ch_message *message;
} one_call;

void     calls_init(void);     /* must be called first */
uint8_t  next_byte(source *s); /* returns 0 at the end of the input */
one_call next_call(source *s);

#endif
