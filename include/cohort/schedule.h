/* cohort/schedule.h -- schedules: learning rates that depend on the number of steps.
 *
 * A schedule is a function from the number of steps to a learning rate.
 *
 *     ch_schedule lr = ch_schedule_warm_up(ch_schedule_cosine(1e-3, 10000, 0.1), 500);
 *     rc = ch_optimizer_adam(0, NULL, &(ch_optimizer_options){.schedule = &lr}, &opt);
 *
 * A schedule is a plain value: there is nothing to free, and threads may share copies. An
 * optimizer evaluates it in the step, from its own count of iterations.
 *
 * Rates, factors, powers and numbers of steps must be finite and not negative. The functions
 * below do not check this; the function that uses the schedule fails.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_SCHEDULE_H
#define COHORT_SCHEDULE_H

#include "cohort/step.h"

#define CH_SCHEDULE_PIECES 16 /* maximum number of boundaries of a piecewise schedule */

typedef enum ch_schedule_kind {
    CH_SCHEDULE_CONSTANT,
    CH_SCHEDULE_EXPONENTIAL,
    CH_SCHEDULE_PIECEWISE,
    CH_SCHEDULE_POLYNOMIAL,
    CH_SCHEDULE_COSINE
} ch_schedule_kind;

typedef struct ch_schedule {
    ch_schedule_kind kind;
    double           rate;  /* first rate, after the warm-up */
    double           steps; /* length of the decay; with restarts: of the first period */
    double factor;   /* exponential: after each `steps`; restarts: of the period length */
    double end;      /* polynomial: last rate; cosine: last rate / first rate */
    double power;    /* polynomial: exponent; restarts: factor of the peak */
    bool   stairs;   /* exponential: the rate changes only every `steps` steps */
    bool   restarts; /* cosine: with restarts */
    double warm_up;  /* steps from rate 0 to `rate`, before the rest begins */
    int    n_pieces; /* piecewise: number of boundaries */
    double boundary[CH_SCHEDULE_PIECES], value[CH_SCHEDULE_PIECES + 1];
} ch_schedule;

CH_API ch_schedule ch_schedule_constant(double rate);
/* Returns rate * factor ^ (step / steps). With `stairs`, step / steps is rounded down. */
CH_API ch_schedule ch_schedule_exponential(double rate, double steps, double factor,
                                           bool stairs);
/* Returns a schedule of n + 1 constant pieces: value[i] up to and including step boundary[i],
 * and value[n] after the last boundary. Boundaries must increase. n is at most
 * CH_SCHEDULE_PIECES. */
CH_API ch_schedule ch_schedule_piecewise(int n, const double *boundary, const double *value);
/* Returns (rate - end) * (1 - step / steps) ^ power + end, and `end` after `steps` steps. */
CH_API ch_schedule ch_schedule_polynomial(double rate, double steps, double end, double power);
/* Returns a decay from `rate` to end * rate along half a cosine. After `steps` steps the rate
 * is constant. */
CH_API ch_schedule ch_schedule_cosine(double rate, double steps, double end);
/* Returns a cosine decay that restarts after each period. The first period has `steps` steps.
 * Each further period is `factor` times as long (1 or more), and its peak is `peak` times as
 * high. */
CH_API ch_schedule ch_schedule_cosine_restarts(double rate, double steps, double factor,
                                               double peak, double end);
/* Returns the schedule `then`, after a linear rise from 0 to its first rate over `steps`
 * steps. */
CH_API ch_schedule ch_schedule_warm_up(ch_schedule then, double steps);

/* ch_schedule_at returns the rate at a step, or NAN if the schedule or the step is invalid.
 * ch_schedule_node records it in a step, from an i64 scalar: an f64 node, weak like
 * ch_number. */
CH_API double   ch_schedule_at(const ch_schedule *p, int64_t step);
CH_API ch_node *ch_schedule_node(const ch_schedule *p, ch_node *step);

#endif
