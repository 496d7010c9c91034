/* job/server/init.h -- descriptions of initial values, which the servers compute.
 *
 * A variable with an initializer is created by a description of a few bytes. Each server
 * computes the values of its shard, so no task needs memory for the whole variable. The values
 * do not depend on the number of shards (kernel/init.h).
 *
 * The coordinator's side (remote_var.c) packs a description, a server computes its values.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_INIT_H
#define JOB_SERVER_INIT_H

#include "cohort/init.h"
#include "job/job.pb-c.h"
#include "job/shard.h"

/* The initial value of a variable. `init` must have passed ch__init_check and must be
 * computable in parts (ch__init_has_parts). */
typedef struct ch_init_spec {
    const ch_init *init;
    char          *name; /* of the whole variable: random numbers depend on it */
    ch_dtype       dtype;
    ch_shape       whole;                     /* shape of the whole variable */
    char           kind[24], fan[8], type[8]; /* text that the packed message points to */
} ch_init_spec;

/* Writes the description of a shard. The message points into `f` and to the data of `f`; both
 * must outlive it. */
void ch__init_spec_pack(ch_init_spec *f, ch_layout l, int shard, Cohort__PsInit *out);

/* Computes the values of an untrusted description in a new tensor, which the caller must unref.
 * RESOURCE_EXHAUSTED if they take more than `max_init_bytes` bytes, unless that is 0. */
CH_MUST_CHECK ch_status ch__init_spec_compute(const Cohort__PsInit *m, ch_device *device,
                                              int64_t max_init_bytes, ch_tensor **out);

#endif
