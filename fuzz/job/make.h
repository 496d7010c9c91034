/* fuzz/job/make.h -- the objects of a job, as bytes: graphs of updates, step plans and datasets.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_MAKE_H
#define FUZZ_JOB_MAKE_H

#include "cohort/cohort.h"
#include "fuzz.h"

enum { VARIABLES = 3, GRAPHS = 2, PLANS = 2, FUNCTIONS = 3, STREAMS = 2 };

/* Bytes that were made once, to be sent and changed. */
typedef struct blob {
    void  *data;
    size_t size;
} blob;

void must(ch_status rc);

/* v, f32[3]; table, f32[4,3]; n, a scalar: 1, 2 and 3 on their server. Made once, and never freed. */
ch_var *const *make_variables(void);
/* Graph i changes variable i. */
blob make_graph(int i);
/* Step plan 0 changes v and n; step plan 1 reads rows of the table and changes them. Variables with rows have n_shards shards. */
blob make_plan(int i, int n_shards);
/* A dataset of two elements, with one component, which is an input of step plan 0, or with two. */
blob       make_stream(int i);
ch_tensor *make_bytes(const blob *b);
ch_tensor *make_tensor(ch_dtype dtype, ch_shape shape);

#endif
