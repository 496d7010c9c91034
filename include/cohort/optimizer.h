/* cohort/optimizer.h -- optimizers: how variables follow their gradients.
 *
 *     ch_optimizer *opt = NULL;
 *     rc = ch_optimizer_adam(1e-3, NULL, &(ch_optimizer_options){.clip_global_norm = 1}, &opt);
 *     ...
 *     ch_optimizer_minimize(opt, s, loss, n, vars);          // in a step
 *
 * Gradients are summed over the replicas, clipped, and applied by one kernel for each variable,
 * in place. Gradients that are sparse stay so: of SGD, Adagrad, row-wise Adagrad, Adam, AdamW
 * and FTRL only the rows that they name are touched, their slots too (Adam's as TensorFlow's
 * lazy form: rows not named do not decay); rows of one id count as their sum. Other rules make
 * them dense, and the log says so once for each variable.
 *
 *   - The aggregation of a variable (ch_var_spec) does not apply to its training: gradients are
 *     summed over the replicas, and every copy gets the same new value, as in ch_update. It
 *     applies to the assigns of the step itself.
 *   - Slots are variables, named after their own: "net/dense/kernel/adam/m". They are made when
 *     a step that applies is first recorded, or by ch_optimizer_build. So is "adam/iterations",
 *     an i64: one more for every call of minimize or apply that was applied.
 *   - The learning rate is a variable: set it between steps, no step is recorded again. With a
 *     schedule it is computed from the iterations, and setting it is an error. It is f64, and
 *     takes the type of what it updates.
 *   - Where a strategy has cut a variable (cohort/parameter_server.h), its shards may be given in its place, all of them: they are
 *     updated as the one that they are of, and the gradients of ch_optimizer_apply are those of the shards. Norms (of LAMB, and for
 *     clipping) and means of rows (of row-wise Adagrad) are those of the whole variable, however it is cut.
 *   - 16-bit variables are updated in f32: a slot "master" holds the exact value, one for all
 *     optimizers ("net/dense/kernel/master"). With Adam such a parameter takes 14 bytes (2, and
 *     4 each for master, m and v), one of f32 takes 12: less memory is what 16 bits bring to
 *     what flows through a step, see ch_layer_set_dtype, not to what is kept. ch_var_set on
 *     such a variable sets its master too. An assign in a step does not: assign to the master
 *     there, or the next update brings the old value back.
 *   - Steps that use one optimizer, or the same variables with two, are recorded by one thread
 *     at a time, and so are the calls that make variables. Steps that update the same variables
 *     are run one after the other; the questions below are asked between them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_OPTIMIZER_H
#define COHORT_OPTIMIZER_H

#include "cohort/schedule.h"
#include "cohort/strategy.h"
#include "cohort/var.h"

typedef struct ch_optimizer ch_optimizer;

/* What to do about a gradient that holds an infinity or a NaN, on any replica. */
typedef enum ch_nonfinite {
    CH_NONFINITE_PASS, /* apply it all the same */
    CH_NONFINITE_SKIP, /* the step changes nothing of the optimizer's, and is counted */
    CH_NONFINITE_STOP  /* the step fails, names the variable, and changes nothing */
} ch_nonfinite;

/* What all optimizers share. */
typedef struct ch_optimizer_options {
    const char        *name;     /* NULL: the rule's, "adam" */
    const ch_schedule *schedule; /* NULL: the learning rate is constant until set; copied */
    double weight_decay; /* decoupled: var -= rate * decay * var; of a sparse gradient, its rows
                            alone. AdamW, LAMB: 0 means 0.01, CH_OFF none */
    double clip_value, clip_norm, clip_global_norm; /* 0: none; one of the norms, then values */
    int    accumulate; /* calls whose gradients are averaged and applied once; 0: 1. Every call
                          weighs the same: of batches of unequal size, it is the mean of their
                          means. Each list of variables is counted by itself, slot "pending" of
                          the first. Costs a slot "sum" of the size of each variable, and a pass
                          over all of it in every step: also where gradients are sparse */
    double average; /* decay of a moving average of each variable, from its value when the slot
                          "average" is made; 0: none. Costs a pass over all of the variable in
                          every step: also where gradients are sparse */
    ch_nonfinite nonfinite;
    double       loss_scale;         /* for f16; 0: none */
    bool         dynamic_loss_scale; /* doubled after 2000 good steps as long as it is finite,
                                        halved after a bad one, which is skipped; starts at
                                        loss_scale or 2^15 */
} ch_optimizer_options;

typedef struct ch_optimizer_sgd_options {
    double momentum;
    bool   nesterov;
} ch_optimizer_sgd_options;
typedef struct ch_optimizer_adagrad_options {
    double initial;  /* of the accumulator; 0: 0.1 */
    double epsilon;  /* 0: 1e-7 */
    bool   row_wise; /* one accumulator for each row of axis 0: the mean of its squares */
} ch_optimizer_adagrad_options;
typedef struct ch_optimizer_rmsprop_options {
    double rho, momentum, epsilon; /* 0: 0.9, none, 1e-7 */
    bool   centered;
} ch_optimizer_rmsprop_options;
typedef struct ch_optimizer_adam_options {
    double beta1, beta2, epsilon; /* 0: 0.9, 0.999, 1e-7 (LAMB: 1e-6) */
    bool   amsgrad;               /* Adam and AdamW */
} ch_optimizer_adam_options;
typedef struct ch_optimizer_ftrl_options {
    double power;   /* 0: -0.5 */
    double initial; /* of the accumulator; 0: 0.1 */
    double l1, l2, l2_shrinkage, beta;
} ch_optimizer_ftrl_options;

/* Both options may be NULL. Rates are finite in f32, and not negative. The rules and their
 * defaults are Keras's, but for: AdamW's decay of 0.01, which is PyTorch's (Keras: 0.004);
 * LAMB, which is the paper's (https://arxiv.org/abs/1904.00962, with the decay in the update
 * and a trust ratio that is not bounded), its epsilon of 1e-6 and decay of 0.01 with it;
 * row-wise Adagrad, which Keras does not have. FTRL divides by the rate: a step at rate 0
 * changes nothing. */
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

/* Makes the slots of these variables, and what the optimizer keeps of its own, without a step:
 * to load them from somewhere before the first. The list is that of the calls to come. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_build(ch_optimizer *o, int n, ch_var *const *var);

/* In a step, not in a loop or branch of one: the gradients of `loss`, a scalar, summed over the
 * replicas, applied. Variables that the loss does not depend on get zeros; those that were made
 * with trainable CH_OFF are refused. */
CH_API void ch_optimizer_minimize(ch_optimizer *o, ch_step *s, ch_node *loss, int n,
                                  ch_var *const *var);
/* The same with gradients of one's own, which are summed over the replicas here too. With a
 * loss scale they are those of the loss times ch_optimizer_loss_scale_node, which is taken
 * out. */
CH_API void ch_optimizer_apply(ch_optimizer *o, ch_step *s, int n, ch_var *const *var,
                               ch_node *const *gradient);

/* Outside a step. What is not made yet is 0, the rate and the loss scale as given; the loss
 * scale is 1 where there is none. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_rate(ch_optimizer *o, double *out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_set_rate(ch_optimizer *o, double rate);
CH_API CH_MUST_CHECK ch_status ch_optimizer_loss_scale(ch_optimizer *o, double *out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_iterations(ch_optimizer *o, int64_t *out);
/* Steps that were skipped: gradients that were not finite. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_skipped(ch_optimizer *o, int64_t *out);
/* Everything it keeps, in the order in which it was made; and one variable's slot by its name.
 * Borrowed. */
CH_API int     ch_optimizer_vars(ch_optimizer *o, ch_var *const **out);
CH_API ch_var *ch_optimizer_slot(ch_optimizer *o, const ch_var *v, const char *slot);
/* With the option average: a variable's moving average, in its dtype. And all variables trade
 * places with their averages: once to evaluate or to save, and once more to train on. */
CH_API CH_MUST_CHECK ch_status ch_optimizer_average(ch_optimizer *o, ch_var *v,
                                                    ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_optimizer_swap_averages(ch_optimizer *o);
/* In a step, as scalars that are weak as ch_number's are: the rate it will apply (f64), and the
 * loss scale (f32). */
CH_API ch_node *ch_optimizer_rate_node(ch_optimizer *o, ch_step *s);
CH_API ch_node *ch_optimizer_loss_scale_node(ch_optimizer *o, ch_step *s);

#endif
