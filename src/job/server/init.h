/* job/server/init.h -- first values of variables, as words, which the servers that have them make numbers of.
 *
 * A table of many gigabytes is a few bytes on the wire, no other task ever has all of it, and shards have the numbers that they would
 * have in one piece (kernel/init.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_INIT_H
#define JOB_SERVER_INIT_H

#include "cohort/init.h"
#include "job/job.pb-c.h"
#include "job/shard.h"

/* What a variable begins with, which ch__init_check found good and which has parts. */
typedef struct ch_init_spec {
    const ch_init *init;
    char          *name; /* of the whole variable: random numbers depend on it */
    ch_dtype       dtype;
    ch_shape       whole;
    char           kind[24], fan[8], type[8]; /* the message's */
} ch_init_spec;

/* Says it of a shard. The message points into `f`, and into what it points to. */
void ch__init_spec_pack(ch_init_spec *f, ch_layout l, int shard, Cohort__PsInit *out);

/* The numbers, from a message of anybody's; RESOURCE_EXHAUSTED for more bytes than `most`, unless that is 0. */
CH_MUST_CHECK ch_status ch__init_spec_compute(const Cohort__PsInit *m, ch_device *device,
                                              int64_t most_bytes, ch_tensor **out);

#endif
