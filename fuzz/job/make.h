/* fuzz/job/make.h -- the objects of a job, as bytes: graphs of updates, step plans and
 * datasets.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_JOB_MAKE_H
#define FUZZ_JOB_MAKE_H

#include "cohort/cohort.h"
#include "fuzz.h"

enum { VARIABLES = 3, GRAPHS = 2, PLANS = 2, FUNCTIONS = 3, STREAMS = 2 };

/* Bytes that are made once and copied into messages. */
typedef struct blob {
    void  *data;
    size_t size;
} blob;

void must(ch_status rc);

/* Returns the variables v (f32[3]), table (f32[4,3]) and n (a scalar), which are 1, 2 and 3 on
 * their server. They are made once and never freed. */
ch_var *const *make_variables(void);
/* Returns graph i, which updates variable i. */
blob make_graph(int i);
/* Returns a step plan. Step plan 0 updates v and n. Step plan 1 reads rows of the table and
 * updates them. Variables with rows have n_shards shards. */
blob make_plan(int i, int n_shards);
/* Returns a dataset of two elements. Elements of dataset 0 have a single component, which is an
 * input of step plan 0. Elements of dataset 1 have two components. */
blob       make_stream(int i);
ch_tensor *make_bytes(const blob *b);
ch_tensor *make_tensor(ch_dtype dtype, ch_shape shape);

#endif
