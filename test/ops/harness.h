/* test/ops/harness.h -- cases: samples with filled inputs, and functions that run them.
 *
 * A case is a sample in a dtype with its inputs filled in. It can be recorded at a level: 0 is
 * the sample itself, 1 its gradient, 2 the gradient of that. The inputs of level k are those of
 * level k - 1 and, behind them, an array of weights for each output of level k - 1 that has a
 * gradient. The outputs of level k are, for each of these outputs, the gradient with respect to
 * each input that has a gradient.
 *
 * Memory that is allocated here is valid until t_forget, which every test calls at its end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_HARNESS_H
#define TEST_OPS_HARNESS_H

#include "graph/function.h"
#include "sample.h"

enum { T_MAX_IN = 64, T_MAX_OUT = 512, T_LEVELS = 3 };

void    *t_alloc(size_t bytes); /* zeroed */
void     t_forget(void);
uint64_t t_bits(uint64_t *state); /* splitmix64 */
double   t_uniform(uint64_t *state);

typedef struct t_made {
    t_array    value; /* rounded to its dtype */
    ch_dtype   dtype;
    bool       is_static;
    ch_tensor *tensor; /* the same values; runs read it */
} t_made;

typedef struct t_case {
    const char *op, *name;
    void (*record)(ch_step *s, ch_node *const *in, ch_node **out);
    unsigned flags;
    ch_dtype dtype;
    int      level;
    bool     ones;           /* level 1 only: weights are ones and not inputs */
    int      n_in[T_LEVELS]; /* number of inputs at each level */
    int      n_out[T_LEVELS];
    t_made   in[T_MAX_IN];
    int      replica;
    int64_t  step;
    uint64_t seed;
    bool     lacks_op; /* the op was not in the last recorded graph */
} t_case;

/* Copies of the outputs of a run. */
typedef struct t_result {
    int       n;
    ch_dtype *dtype;
    t_array  *value; /* as doubles */
    void    **data;  /* in their own dtype */
    size_t   *bytes;
} t_result;

/* Makes a case of a sample, with ids as i64 or i32. Adds `rows` rows to every input that is not
 * static, or removes all rows if `rows` is -1. */
t_case *t_case_of(const t_sample *x, ch_dtype dtype, ch_dtype ids, int rows);
t_case *t_case_of_refusal(const t_refusal *x, ch_dtype ids);
/* Replaces the values, the shape and the dtype of input i. `value` may be NULL: zeros. */
void t_set_input(t_case *c, int i, ch_dtype dtype, ch_shape shape, const double *value);
/* Makes a case with the same values, rounded to this dtype. */
t_case *t_case_as(const t_case *c, ch_dtype dtype);
void    t_case_drop(t_case *c); /* frees the tensors of the case */
/* Raises the case to the next level. `low` are the results of the current level. */
void t_case_raise(t_case *c, const t_result *low);
/* The same with ones as weights, so that the number of rows may stay a symbol. */
void t_case_raise_ones(t_case *c, const t_result *low);
/* Returns true if values of this dtype have a gradient in this case. */
bool t_smooth(const t_case *c, ch_dtype dtype);

/* Returns a function that records the case at a level, for t_run. */
ch_function *t_case_function(t_case *c, int level);
ch_tuple    *t_arguments(const t_case *c);
/* Returns the arguments as flat values of ragged components, followed by row splits: a single
 * row has all values. */
ch_tuple *t_arguments_ragged(const t_case *c);
/* Runs the function on the device, which has T_THREADS threads. `out` may be NULL. */
ch_status t_try(t_case *c, ch_function *f, ch_tuple *in, t_result **out);
t_result *t_run(t_case *c, ch_function *f); /* must succeed */
/* Runs a program of this case without a device, on the team of the caller. Calls `see` for each
 * call. */
ch_status t_run_program(t_case *c, ch_program *p, ch_team *team,
                        void (*see)(void *arg, const ch_instr *i, const ch_call *call),
                        void *arg, t_result **out);

enum { T_THREADS = 3 };

/* Both end the test unless the results agree. The message names op, sample, dtype, element, got
 * and wanted. */
void t_assert_same_bits(const t_case *c, const char *how, const t_result *got,
                        const t_result *want);
void t_assert_near(const t_case *c, const char *how, ch_dtype dtype, const t_array *got,
                   const t_array *want, double tolerance);
/* Returns the permitted difference of a result of this dtype, relative to its size. */
double t_tolerance(double asked, ch_dtype sample, ch_dtype out);
void   t_fail(const t_case *c, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

#endif
