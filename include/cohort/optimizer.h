/* cohort/optimizer.h -- optimizers: update rules that train variables with their gradients.
 *
 * An optimizer is an update rule, such as Adam, with its options and its state: slot variables,
 * a learning rate and a counter of iterations.
 *
 *     rc = ch_optimizer_adam(1e-3, NULL, &(ch_optimizer_options){.clip_global_norm = 1}, &opt);
 *
 *     ch_optimizer_minimize(opt, s, loss, n, vars);          // in a step
 *
 * The optimizer sums the gradients over the replicas, clips them, and applies them in place,
 * with a single kernel for each variable.
 *
 *   - Ownership: optimizers are reference counted. An optimizer holds references to the
 *     variables that it trains and to its own variables.
 *   - Threads: steps that use the same optimizer, or train the same variables with two
 *     optimizers, must be recorded by one thread at a time. The same holds for calls that
 *     create variables, such as ch_optimizer_build. Steps that update the same variables must
 *     not run at the same time, unless parameter servers hold the variables. Functions that
 *     read the optimizer must be called between such runs.
 *   - Replicas: the aggregation of a variable (ch_var_spec) does not apply to its training.
 *     Gradients are summed over the replicas, and every copy gets the same new value, as in
 *     ch_update. The aggregation applies to assigns in the step.
 *   - Sparse gradients: SGD, Adagrad, row-wise Adagrad, Adam, AdamW and FTRL update only the
 *     rows that the gradient names, and their slots. Rows that are not named do not decay, as
 *     in the lazy Adam of TensorFlow. Rows with the same id are added up. Other rules make the
 *     gradient dense; the log says so once for each variable.
 *   - Slots: slots are variables with the name of the variable that they belong to:
 *     "net/dense/kernel/adam/m". They are created when a step that trains is first recorded, or
 *     by ch_optimizer_build. So is "adam/iterations", an i64 that counts the calls of minimize
 *     and apply that were applied.
 *   - Learning rate: the rate is a variable, so the program may set it between runs and no step
 *     is recorded again. With a schedule it is computed from the iterations, and setting it is
 *     an error. The rate is f64, and is converted to the dtype of the variable that is updated.
 *   - Shards: if a strategy has divided a variable (cohort/parameter_server.h), a call may be
 *     given all of its shards instead of the variable. The shards are updated as a single
 *     variable, and ch_optimizer_apply takes the gradients of the shards. Norms (of LAMB, and
 *     for clipping) and means of rows (of row-wise Adagrad) are those of the whole variable.
 *   - 16-bit variables are updated in f32. A slot "master" holds the exact value; all
 *     optimizers share it ("net/dense/kernel/master"). With Adam, a 16-bit parameter takes 14
 *     bytes (2, and 4 each for master, m and v), and an f32 parameter takes 12. So 16 bits save
 *     memory for the values of a step (see ch_layer_set_dtype), not for variables. ch_var_set
 *     on such a variable also sets its master. An assign in a step does not: the step must
 *     assign to the master too, or the next update restores the old value.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_OPTIMIZER_H
#define COHORT_OPTIMIZER_H

#include "cohort/schedule.h"
#include "cohort/strategy.h"
#include "cohort/var.h"

typedef struct ch_optimizer ch_optimizer;

/* The policy for a gradient that contains an infinity or a NaN, on any replica. */
typedef enum ch_nonfinite {
    CH_NONFINITE_PASS, /* the gradient is applied */
    CH_NONFINITE_SKIP, /* the gradients are not applied; the step counts as skipped */
    CH_NONFINITE_STOP  /* the step fails and changes nothing; the error names the variable */
} ch_nonfinite;

/* Options of all optimizers. */
typedef struct ch_optimizer_options {
    const char        *name;     /* NULL: the name of the rule, such as "adam" */
    const ch_schedule *schedule; /* copied; NULL: the learning rate is constant until set */
    /* Decoupled weight decay: var -= rate * decay * var. With a sparse gradient, only for its
     * rows. 0: none, except 0.01 for AdamW and LAMB; CH_OFF: none. */
    double weight_decay;
    /* Limits of the gradients; 0: no limit. They apply to the gradient that the rule uses:
     * summed over the replicas, divided by the loss scale, averaged over `accumulate` calls.
     * Weight decay is not clipped. First one of the two norms, of which at most one may be set:
     *   - clip_norm: if the L2 norm of a variable's gradient is greater, this gradient is
     *     multiplied by clip_norm / norm. Each variable is clipped by itself.
     *   - clip_global_norm: if the L2 norm of all gradients of the call together is greater,
     *     all are multiplied by clip_global_norm / norm. Their direction stays.
     * Then clip_value: each number of a gradient is limited to [-clip_value, clip_value]. */
    double clip_value, clip_norm, clip_global_norm;
    /* Number of calls whose gradients are averaged and then applied once; 0: 1. Every call has
     * the same weight: with batches of unequal size, the result is the mean of their means.
     * Each list of variables is counted separately, in the slot "pending" of its first
     * variable. Costs a slot "sum" for each variable, and a pass over the whole slot in every
     * step, also with sparse gradients. */
    int accumulate;
    /* Decay of a moving average of each variable; 0: none. The average starts with the value of
     * the variable when the slot "average" is created. Costs a pass over the whole variable in
     * every step, also with sparse gradients. */
    double       average;
    ch_nonfinite nonfinite;
    double       loss_scale; /* for f16; 0: none */
    /* true: the loss scale starts at loss_scale, or at 2^15 if that is 0. It is doubled after
     * 2000 finite steps, as long as it stays finite, and halved after a step that is not
     * finite, which is skipped. */
    bool dynamic_loss_scale;
} ch_optimizer_options;

typedef struct ch_optimizer_sgd_options {
    double momentum; /* 0: none */
    bool   nesterov; /* needs a momentum */
} ch_optimizer_sgd_options;
typedef struct ch_optimizer_adagrad_options {
    double initial; /* initial value of the accumulators; 0: 0.1 */
    double epsilon; /* 0: 1e-7 */
    /* true: an accumulator for each row of axis 0, to which the mean of the squares of the row
     * is added; false: an accumulator for each element. */
    bool row_wise;
} ch_optimizer_adagrad_options;
typedef struct ch_optimizer_rmsprop_options {
    double rho, momentum, epsilon; /* 0: 0.9, no momentum, 1e-7 */
    bool   centered;
} ch_optimizer_rmsprop_options;
typedef struct ch_optimizer_adam_options {
    double beta1, beta2, epsilon; /* 0: 0.9, 0.999, 1e-7 (LAMB: 1e-6) */
    bool   amsgrad;               /* Adam and AdamW only */
} ch_optimizer_adam_options;
typedef struct ch_optimizer_ftrl_options {
    double power;   /* 0: -0.5 */
    double initial; /* initial value of the accumulators; 0: 0.1 */
    double l1, l2, l2_shrinkage, beta;
} ch_optimizer_ftrl_options;

/* Each of these functions creates an optimizer. `rule` and `opt` may be NULL. `rate` is the
 * learning rate: not negative, and finite in f32. The rate is not used if `opt` has a schedule.
 *
 * The rules and their defaults are those of Keras, except:
 *   - AdamW: the weight decay is 0.01, as in PyTorch (Keras: 0.004).
 *   - LAMB: the rule of the paper (https://arxiv.org/abs/1904.00962), with the decay in the
 *     update and no bounds on the trust ratio. Epsilon is 1e-6 and the weight decay 0.01.
 *   - Row-wise Adagrad, which Keras does not have.
 *
 * FTRL divides by the rate: a step at rate 0 changes nothing. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_sgd(double                          rate,
                                                const ch_optimizer_sgd_options *rule,
                                                const ch_optimizer_options     *opt,
                                                ch_optimizer                  **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_adagrad(double                              rate,
                                                    const ch_optimizer_adagrad_options *rule,
                                                    const ch_optimizer_options         *opt,
                                                    ch_optimizer                      **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_rmsprop(double                              rate,
                                                    const ch_optimizer_rmsprop_options *rule,
                                                    const ch_optimizer_options         *opt,
                                                    ch_optimizer                      **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_adam(double                           rate,
                                                 const ch_optimizer_adam_options *rule,
                                                 const ch_optimizer_options      *opt,
                                                 ch_optimizer                   **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_adamw(double                           rate,
                                                  const ch_optimizer_adam_options *rule,
                                                  const ch_optimizer_options      *opt,
                                                  ch_optimizer                   **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_adamax(double                           rate,
                                                   const ch_optimizer_adam_options *rule,
                                                   const ch_optimizer_options      *opt,
                                                   ch_optimizer                   **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_ftrl(double                           rate,
                                                 const ch_optimizer_ftrl_options *rule,
                                                 const ch_optimizer_options      *opt,
                                                 ch_optimizer                   **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_lamb(double                           rate,
                                                 const ch_optimizer_adam_options *rule,
                                                 const ch_optimizer_options      *opt,
                                                 ch_optimizer                   **out);
CH_API ch_optimizer           *ch_optimizer_ref(ch_optimizer *o);
CH_API void                    ch_optimizer_unref(ch_optimizer *o);

/* Creates the slots of these variables, and the optimizer's own variables, without a step. Use
 * this function to load their values before the first step. `var` must be the list that later
 * calls use. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_build(ch_optimizer *o, int n, ch_var *const *var);

/* Records a training step: computes the gradients of `loss`, a scalar, sums them over the
 * replicas and applies them. Must not be called inside a branch or loop body. A variable that
 * the loss does not depend on gets a gradient of zeros. A variable that is not trainable is an
 * error. */
CH_API void ch_optimizer_minimize(ch_optimizer *o, ch_step *s, ch_node *loss, int n,
                                  ch_var *const *var);
/* Records the same with given gradients, which this call sums over the replicas too. With a
 * loss scale, the gradients must be those of the loss times ch_optimizer_loss_scale_node; this
 * call divides by the scale. */
CH_API void ch_optimizer_apply(ch_optimizer *o, ch_step *s, int n, ch_var *const *var,
                               ch_node *const *gradient);

/* These functions, up to ch_optimizer_swap_averages, read or change the state of the optimizer.
 * They must be called outside steps. ch_optimizer_iterations counts applied steps. Before the
 * optimizer's variables are created, iterations are 0, and the rate and the loss scale are as
 * given at creation. The loss scale is 1 if there is none. ch_optimizer_set_rate returns
 * FAILED_PRECONDITION if there is a schedule. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_rate(ch_optimizer *o, double *out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_set_rate(ch_optimizer *o, double rate);
CH_API CH_MUST_CHECK ch_status ch_optimizer_loss_scale(ch_optimizer *o, double *out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_iterations(ch_optimizer *o, int64_t *out);
/* Counts the steps that were skipped because a gradient was not finite. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_skipped(ch_optimizer *o, int64_t *out);
/* ch_optimizer_vars lists all variables of the optimizer, in the order of their creation, and
 * returns their number. The list is valid until the optimizer creates another variable.
 * ch_optimizer_slot returns a slot of a variable by its name, such as "m", or NULL.
 * Borrowed. */
CH_API int     ch_optimizer_vars(ch_optimizer *o, ch_var *const **out);
CH_API ch_var *ch_optimizer_slot(ch_optimizer *o, const ch_var *v, const char *slot);
/* For optimizers with the option `average`. ch_optimizer_average returns the moving average of
 * a variable, in the variable's dtype. ch_optimizer_swap_averages exchanges all variables with
 * their averages: call it before an evaluation or a save, and again before training
 * continues. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_average(ch_optimizer *o, ch_var *v,
                                                    ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_swap_averages(ch_optimizer *o);
/* ch_optimizer_rate_node returns the learning rate that will be applied (f64), and
 * ch_optimizer_loss_scale_node the loss scale (f32), as scalar nodes in a step. The nodes are
 * weak, like ch_number. */
CH_API ch_node *ch_optimizer_rate_node(ch_optimizer *o, ch_step *s);
CH_API ch_node *ch_optimizer_loss_scale_node(ch_optimizer *o, ch_step *s);

#endif
