/* test/ops/calls.h -- samples call by call: the values of all calls of a sample, for tests that
 * run each call in another way.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_CALLS_H
#define TEST_OPS_CALLS_H

#include "graph/program.h"
#include "harness.h"

/* ---- memory ---- */

/* Returns aligned memory for kernels, filled with NaN. t_forget_blocks frees it. */
void *t_block(int64_t bytes);
/* Returns the last block, for t_forget_blocks; NULL: there is none. */
const void *t_last_block(void);
/* Frees the blocks that were made after `last`; NULL: all. */
void t_forget_blocks(const void *last);

/* ---- values ---- */

/* A specialised graph with the values of all its nodes. */
typedef struct t_values {
    t_case   *c;
    ch_graph *graph; /* referenced */
    ch_env    env;
    void    **at; /* by id */
} t_values;

/* Computes all values that are not set. Returns the error of the first call that fails. */
ch_status t_run_calls(t_values *v);
/* Returns the elements of a value as doubles. */
t_array t_array_of(const ch_node *n, const void *data);
/* Returns true if all inputs and outputs of the call are whole numbers. */
bool t_is_exact(const t_values *v, const ch_node *n);
/* Returns the square root of the mean square of the elements, or 0 if that is not finite. */
double t_rms(const t_array *a);
/* Returns true if an input or output of the call has so many elements that tests divide the
 * call in a few ways only. */
bool t_is_large(const ch_node *n);

/* ---- samples ---- */

/* Returns the sample with small whole numbers in place of fractions. */
t_sample t_in_whole_numbers(const t_sample *x);
/* Runs the sample in a dtype call by call, and passes the values to `see`; then its gradient,
 * if asked for. `may_fail`: a run may be refused, because the sample has whole numbers in place
 * of others. */
void t_see_calls(const t_sample *x, ch_dtype dtype, bool may_fail, bool with_gradients,
                 void (*see)(t_values *v, double tolerance));
/* Returns dtype i of a sample, widest floats first; CH_STR: there are no more. */
ch_dtype t_dtype_at(const t_sample *x, int i);

/* The tests of a program: one for each sample, and a last one. */
typedef struct t_sample_tests {
    const char *name;
    void (*each)(void **state); /* *state is the sample */
    void (*last)(void **state); /* NULL: none */
    int (*start)(void **state);
    int (*stop)(void **state);
} t_sample_tests;

/* Runs the tests on the samples of all families; NULL ends the list. Returns the number of
 * tests that fail. */
int t_run_sample_tests(const t_family *const *families, const t_sample_tests *tests);

#endif
