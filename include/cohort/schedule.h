/* cohort/schedule.h -- learning rates that change with the number of steps taken.
 *
 *     ch_schedule lr = ch_schedule_warm_up(ch_schedule_cosine(1e-3, 10000, 0.1), 500);
 *
 * A schedule is a plain value; the optimizer evaluates it in the step, from its own count of
 * steps. Rates, factors, powers and numbers of steps are finite and not negative: who uses a
 * schedule that is otherwise refuses it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_SCHEDULE_H
#define COHORT_SCHEDULE_H

#include "cohort/step.h"

#define CH_SCHEDULE_PIECES 16

typedef enum ch_schedule_kind {
    CH_SCHEDULE_CONSTANT,
    CH_SCHEDULE_EXPONENTIAL,
    CH_SCHEDULE_PIECEWISE,
    CH_SCHEDULE_POLYNOMIAL,
    CH_SCHEDULE_COSINE
} ch_schedule_kind;

typedef struct ch_schedule {
    ch_schedule_kind kind;
    double           rate;   /* the first, after warming up */
    double           steps;  /* of the decay; the first period of a cosine with restarts */
    double           factor; /* exponential: each `steps`; restarts: of the next period */
    double end;    /* polynomial: the last rate; cosine: the last as a part of the first */
    double power;  /* polynomial; restarts: of the next peak */
    bool   stairs; /* exponential: in whole numbers of `steps` */
    bool   restarts;
    double warm_up; /* steps from 0 to `rate`, before the rest begins */
    int    n_pieces;
    double boundary[CH_SCHEDULE_PIECES], value[CH_SCHEDULE_PIECES + 1];
} ch_schedule;

CH_API ch_schedule ch_schedule_constant(double rate);
/* rate * factor ^ (step / steps). */
CH_API ch_schedule ch_schedule_exponential(double rate, double steps, double factor,
                                           bool stairs);
/* value[i] up to and including step boundary[i], value[n] after the last; n is at most
 * CH_SCHEDULE_PIECES. */
CH_API ch_schedule ch_schedule_piecewise(int n, const double *boundary, const double *value);
/* (rate - end) * (1 - step / steps) ^ power + end, and `end` from there on. */
CH_API ch_schedule ch_schedule_polynomial(double rate, double steps, double end, double power);
/* From `rate` down to end * rate along half a cosine. */
CH_API ch_schedule ch_schedule_cosine(double rate, double steps, double end);
/* Again and again, each period `factor` times the one before, each peak `peak` times. */
CH_API ch_schedule ch_schedule_cosine_restarts(double rate, double steps, double factor,
                                               double peak, double end);
/* The same after a straight rise from 0 over `steps`. */
CH_API ch_schedule ch_schedule_warm_up(ch_schedule then, double steps);

/* The rate at a step: in C, NAN for what makes no sense; and in a step, of an i64 scalar: a
 * number of f64, weak as ch_number's are. */
CH_API double   ch_schedule_at(const ch_schedule *p, int64_t step);
CH_API ch_node *ch_schedule_node(const ch_schedule *p, ch_node *step);

#endif
