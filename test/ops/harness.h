/* test/ops/harness.h -- a sample made ready to run, and running it in every way there is.
 *
 * A case is a sample in one dtype with its inputs filled in. It can be recorded at a level: 0
 * is the sample itself, 1 its gradient, 2 the gradient of that. Level k takes the inputs of
 * level k - 1 and, behind them, one array of weights for each of its outputs that has a
 * gradient; its outputs are, for each of these, the gradient with respect to each input that
 * has one.
 *
 * Whatever is allocated here lives until t_forget, which every test calls at its end.
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
    t_array    value; /* as its dtype holds it */
    ch_dtype   dtype;
    bool       is_static;
    ch_tensor *tensor; /* the same; what runs read */
} t_made;

typedef struct t_case {
    const char *op, *name;
    void (*record)(ch_step *s, ch_node *const *in, ch_node **out);
    unsigned flags;
    ch_dtype dtype;
    int      level;
    bool     ones;           /* level 1 only: weights are ones, and no inputs */
    int      n_in[T_LEVELS]; /* at each level */
    int      n_out[T_LEVELS];
    t_made   in[T_MAX_IN];
    int      replica;
    int64_t  step;
    uint64_t seed;
    bool     lacks_op; /* the op was not in the graph that was recorded last */
} t_case;

/* What came out of a run, copied. */
typedef struct t_result {
    int       n;
    ch_dtype *dtype;
    t_array  *value; /* as doubles, */
    void    **data;  /* and as they are */
    size_t   *bytes;
} t_result;

/* A case of a sample; ids as i64 or i32. Rows are added to those of every input that is not
 * static (or, where `rows` is -1, all are taken away). */
t_case *t_case_of(const t_sample *x, ch_dtype dtype, ch_dtype ids, int rows);
t_case *t_case_of_refusal(const t_refusal *x, ch_dtype ids);
/* Input i again with other values or another shape and dtype; `value` may be NULL: zeros. */
void t_set_input(t_case *c, int i, ch_dtype dtype, ch_shape shape, const double *value);
/* Another case with the same values, as far as this dtype holds them. */
t_case *t_case_as(const t_case *c, ch_dtype dtype);
void    t_case_drop(t_case *c); /* its tensors */
/* Goes up one level: needs the results of this one. */
void t_case_raise(t_case *c, const t_result *low);
/* The same with ones for weights, so that rows may stay symbols. */
void t_case_raise_ones(t_case *c, const t_result *low);
/* True for what has a gradient in this case. */
bool t_smooth(const t_case *c, ch_dtype dtype);

/* A function that records the case at a level, for t_run. */
ch_function *t_function(t_case *c, int level);
ch_tuple    *t_arguments(const t_case *c);
/* The same as flat values of ragged components, whose splits follow: a row has them all. */
ch_tuple *t_arguments_ragged(const t_case *c);
/* Runs on the device, which has T_THREADS threads; `out` may be NULL. */
ch_status t_try(t_case *c, ch_function *f, ch_tuple *in, t_result **out);
t_result *t_run(t_case *c, ch_function *f); /* must go well */
/* Runs a program of this case by itself: with a team of the caller's, seeing each call. */
ch_status t_run_program(t_case *c, ch_program *p, ch_team *team,
                        void (*see)(void *arg, const ch_instr *i, const ch_call *call),
                        void *arg, t_result **out);

enum { T_THREADS = 3 };

/* Both end the test with a message that names op, sample, dtype, element, got and wanted. */
void t_assert_same_bits(const t_case *c, const char *how, const t_result *got,
                        const t_result *want);
void t_assert_near(const t_case *c, const char *how, ch_dtype dtype, const t_array *got,
                   const t_array *want, double tolerance);
/* What a result of this dtype may differ by, relative to its size. */
double t_tolerance(double asked, ch_dtype sample, ch_dtype out);
void   t_fail(const t_case *c, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

#endif
