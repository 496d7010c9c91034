/* train/schedule.c -- learning rates that depend on the number of steps done.
 *
 * Each formula is implemented twice: in C for ch_schedule_at, and with nodes for
 * ch_schedule_node. Both compute in f64 and must agree.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

#include "cohort/ops.h"
#include "graph/step.h"

#define PI 3.14159265358979323846

/* Added before a period index is rounded down, so that a rounding error of the logarithm does
 * not put the first step of a period into the period before. */
#define SLACK 1e-9

/* ---- creation ---- */

ch_schedule ch_schedule_constant(double rate)
{
    return (ch_schedule){.kind = CH_SCHEDULE_CONSTANT, .rate = rate};
}

ch_schedule ch_schedule_exponential(double rate, double steps, double factor, bool stairs)
{
    return (ch_schedule){.kind = CH_SCHEDULE_EXPONENTIAL,
                         .rate = rate,
                         .steps = steps,
                         .factor = factor,
                         .stairs = stairs};
}

ch_schedule ch_schedule_piecewise(int n, const double *boundary, const double *value)
{
    ch_schedule p = {.kind = CH_SCHEDULE_PIECEWISE, .n_pieces = n};

    if (n < 0 || n > CH_SCHEDULE_PIECES)
        return p; /* ch__schedule_check reports the error */
    if (value == NULL || (n > 0 && boundary == NULL)) {
        p.n_pieces = -1;
        return p;
    }
    for (int i = 0; i < n; i++)
        p.boundary[i] = boundary[i];
    for (int i = 0; i <= n; i++)
        p.value[i] = value[i];
    p.rate = value[0];
    return p;
}

ch_schedule ch_schedule_polynomial(double rate, double steps, double end, double power)
{
    return (ch_schedule){.kind = CH_SCHEDULE_POLYNOMIAL,
                         .rate = rate,
                         .steps = steps,
                         .end = end,
                         .power = power};
}

ch_schedule ch_schedule_cosine(double rate, double steps, double end)
{
    return (ch_schedule){.kind = CH_SCHEDULE_COSINE, .rate = rate, .steps = steps, .end = end};
}

ch_schedule ch_schedule_cosine_restarts(double rate, double steps, double factor, double peak,
                                        double end)
{
    return (ch_schedule){.kind = CH_SCHEDULE_COSINE,
                         .rate = rate,
                         .steps = steps,
                         .factor = factor,
                         .power = peak,
                         .end = end,
                         .restarts = true};
}

ch_schedule ch_schedule_warm_up(ch_schedule then, double steps)
{
    then.warm_up = steps;
    return then;
}

/* Checks that x is finite and not negative. A rate must be finite in f32 too, because it is
 * cast to f32 for f32 variables. */
static ch_status check(const char *name, double x, bool is_rate)
{
    if (x >= 0 && (is_rate ? isfinite((float)x) : isfinite(x)))
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "schedule: %s is %g, want at least 0, and finite%s",
                    name, x, is_rate ? " in f32" : "");
}

static ch_status check_pieces(const ch_schedule *p)
{
    ch_status rc = CH_OK;

    if (p->n_pieces < 0 || p->n_pieces > CH_SCHEDULE_PIECES)
        return ch__fail(CH_INVALID_ARGUMENT, "schedule: %d boundaries, want 0 to %d",
                        p->n_pieces, CH_SCHEDULE_PIECES);
    for (int i = 0; i < p->n_pieces; i++)
        if (!isfinite(p->boundary[i]) || (i > 0 && !(p->boundary[i] > p->boundary[i - 1])))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "schedule: boundary %d is %g, after %g; want ascending boundaries",
                            i, p->boundary[i], i > 0 ? p->boundary[i - 1] : -INFINITY);
    for (int i = 0; i <= p->n_pieces && rc == CH_OK; i++)
        rc = check("a rate", p->value[i], true);
    return rc;
}

static ch_status check_decay(const ch_schedule *p)
{
    bool      multiplies = p->kind == CH_SCHEDULE_EXPONENTIAL || p->restarts;
    bool      has_power = p->kind == CH_SCHEDULE_POLYNOMIAL || p->restarts;
    ch_status rc = check("the last rate", p->end, true);

    if (!(p->steps > 0 && isfinite(p->steps)))
        return ch__fail(CH_INVALID_ARGUMENT, "schedule: %g steps, want more than 0, and finite",
                        p->steps);
    if (rc == CH_OK && multiplies)
        rc = check("the factor", p->factor, false);
    if (rc == CH_OK && p->restarts && !(p->factor >= 1))
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "schedule: the factor is %g, want 1 or more for restarts", p->factor);
    if (rc == CH_OK && has_power)
        rc = check(p->restarts ? "the next peak" : "the power", p->power, false);
    return rc;
}

ch_status ch__schedule_check(const ch_schedule *p)
{
    ch_status rc = check("the rate", p->rate, true);

    if ((int)p->kind < 0 || p->kind > CH_SCHEDULE_COSINE)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "schedule: the kind is %d, want a value of ch_schedule_kind",
                        (int)p->kind);
    if (rc == CH_OK)
        rc = check("the number of steps to warm up", p->warm_up, false);
    if (rc == CH_OK && p->kind == CH_SCHEDULE_PIECEWISE)
        rc = check_pieces(p);
    else if (rc == CH_OK && p->kind != CH_SCHEDULE_CONSTANT)
        rc = check_decay(p);
    return rc;
}

/* ---- evaluation in C ---- */

static double cosine_at(const ch_schedule *p, double x)
{
    double done = x / p->steps, peak = 1;

    if (!p->restarts) {
        done = fmin(done, 1);
    } else {
        double i = p->factor == 1
                       ? floor(done + SLACK)
                       : floor(log(1 - done * (1 - p->factor)) / log(p->factor) + SLACK);
        double before = p->factor == 1 ? i : (1 - pow(p->factor, i)) / (1 - p->factor);

        done = (done - before) / pow(p->factor, i);
        peak = pow(p->power, i);
    }
    return p->rate * ((1 - p->end) * 0.5 * peak * (1 + cos(PI * done)) + p->end);
}

static double at(const ch_schedule *p, double x)
{
    double e = x / p->steps;
    int    i = 0;

    switch (p->kind) {
    case CH_SCHEDULE_EXPONENTIAL:
        return p->rate * pow(p->factor, p->stairs ? floor(e) : e);
    case CH_SCHEDULE_PIECEWISE:
        while (i < p->n_pieces && x > p->boundary[i])
            i++;
        return p->value[i];
    case CH_SCHEDULE_POLYNOMIAL:
        return (p->rate - p->end) * pow(1 - fmin(e, 1), p->power) + p->end;
    case CH_SCHEDULE_COSINE:
        return cosine_at(p, x);
    case CH_SCHEDULE_CONSTANT:
        break;
    }
    return p->rate;
}

double ch_schedule_at(const ch_schedule *p, int64_t step)
{
    double x = (double)step;

    if (p == NULL || step < 0 || ch__schedule_check(p) != CH_OK)
        return NAN;
    return x < p->warm_up ? p->rate * x / p->warm_up : at(p, x - p->warm_up);
}

/* ---- recording as nodes ---- */

static ch_node *number(ch_node *x, double value)
{
    return ch_fill(ch_node_step(x), CH_F64, ch_shape_scalar(), value);
}

static ch_node *times(ch_node *x, double value)
{
    return ch_mul(x, number(x, value));
}

static ch_node *plus(ch_node *x, double value)
{
    return ch_add(x, number(x, value));
}

/* Returns base ^ x. */
static ch_node *power(double base, ch_node *x)
{
    return ch_pow(number(x, base), x);
}

static ch_node *cosine_node(const ch_schedule *p, ch_node *x)
{
    ch_node *done = ch_div(x, number(x, p->steps)), *y;

    if (!p->restarts) {
        y = plus(ch_cos(times(ch_minimum(done, number(x, 1)), PI)), 1);
    } else {
        ch_node *i, *before;

        if (p->factor == 1) {
            before = i = ch_floor(plus(done, SLACK));
        } else {
            i = ch_log(plus(times(done, p->factor - 1), 1));
            i = ch_floor(plus(times(i, 1 / log(p->factor)), SLACK));
            before = times(plus(power(p->factor, i), -1), 1 / (p->factor - 1));
        }
        done = ch_div(ch_sub(done, before), power(p->factor, i));
        y = ch_mul(plus(ch_cos(times(done, PI)), 1), power(p->power, i));
    }
    return times(plus(times(y, 0.5 * (1 - p->end)), p->end), p->rate);
}

static ch_node *node_at(const ch_schedule *p, ch_node *x)
{
    ch_node *y, *e = p->steps > 0 ? ch_div(x, number(x, p->steps)) : x;

    switch (p->kind) {
    case CH_SCHEDULE_EXPONENTIAL:
        return times(power(p->factor, p->stairs ? ch_floor(e) : e), p->rate);
    case CH_SCHEDULE_PIECEWISE:
        y = number(x, p->value[p->n_pieces]);
        for (int i = p->n_pieces - 1; i >= 0; i--)
            y = ch_select(ch_less_equal(x, number(x, p->boundary[i])), number(x, p->value[i]),
                          y);
        return y;
    case CH_SCHEDULE_POLYNOMIAL:
        y = plus(times(ch_minimum(e, number(x, 1)), -1), 1);
        return plus(times(ch_pow(y, number(x, p->power)), p->rate - p->end), p->end);
    case CH_SCHEDULE_COSINE:
        return cosine_node(p, x);
    case CH_SCHEDULE_CONSTANT:
        break;
    }
    return number(x, p->rate);
}

static ch_node *warmed_up(const ch_schedule *p, ch_node *x)
{
    ch_node *rise, *y = node_at(p, p->warm_up > 0 ? plus(x, -p->warm_up) : x);

    if (p->warm_up == 0)
        return y;
    rise = ch_div(times(x, p->rate), number(x, p->warm_up));
    return ch_select(ch_less(x, number(x, p->warm_up)), rise, y);
}

ch_node *ch__schedule_node(const ch_schedule *p, ch_node *step)
{
    return step != NULL ? warmed_up(p, ch_cast(step, CH_F64)) : NULL;
}

ch_node *ch_schedule_node(const ch_schedule *p, ch_node *step)
{
    ch_step    *s = step != NULL ? ch_node_step(step) : NULL;
    ch_node    *y = NULL;
    const void *before;
    ch_status   rc;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    before = ch__step_begin(s);
    rc = p != NULL ? ch__schedule_check(p)
                   : ch__fail(CH_INVALID_ARGUMENT, "schedule: the schedule is NULL");
    if (rc == CH_OK && (step->dtype != CH_I64 || step->dims.rank != 0))
        rc = ch__fail(CH_INVALID_ARGUMENT, "schedule: the step is not a scalar of i64");
    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
    else
        y = ch_identity(ch__schedule_node(p, step));
    if (y != NULL)
        y->weak = true;
    ch__step_end(s, before);
    return y;
}
