/* train/optimizer_step.c -- what an optimizer records in a step.
 *
 * In this order, over all variables: gradients; their sum over the replicas; checks, so that all
 * replicas decide alike; sums over steps; norms; the numbers of the run; the updates;
 * counters. Nothing from the updates on can fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cohort/ops.h"
#include "graph/step.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"
#include "strategy/strategy.h"
#include "train/optimizer.h"

#define GOOD_STEPS 2000 /* after which a dynamic loss scale doubles */

/* One variable's gradient. */
typedef struct gradient {
    ch_var  *var;
    ch_node *ids;   /* of a sparse one; else NULL */
    ch_node *value; /* rows, or all of it */
} gradient;

typedef struct recording {
    ch_optimizer *o;
    ch_step      *s;
    int           n;
    gradient     *g;
    ch_node     **value;   /* room for n */
    ch_node      *divisor; /* f32: what gradients are to be divided by */
    ch_node      *finite;  /* bool; NULL: not asked */
    ch_node      *apply;   /* bool; NULL: always */
    ch_node      *iterations;
    ch_node      *hyper[2]; /* f32, f64; shared by all variables, unless norms are clipped */
} recording;

static void take(ch_step *s, ch_status rc)
{
    if (rc != CH_OK)
        ch__step_take(s, rc, NULL);
}

/* ---- variables of the optimizer, as nodes ---- */

static ch_var *own_var(recording *r, ch_opt_own which)
{
    ch_var *v = NULL;

    if (ch_step_status(r->s) == CH_OK)
        take(r->s, ch__opt_own(r->o, r->s->owner, which, &v));
    return v;
}

static ch_var *slot_var(recording *r, ch_var *v, int i)
{
    ch_var *slot = NULL;

    if (ch_step_status(r->s) == CH_OK)
        take(r->s, ch__opt_slot(r->o, v, i, &slot));
    return slot;
}

static ch_node *read_own(recording *r, ch_opt_own which)
{
    ch_var *v = own_var(r, which);

    return v != NULL ? ch_var_read(r->s, v) : NULL;
}

static void write_own(recording *r, ch_opt_own which, ch_node *value)
{
    ch_var *v = own_var(r, which);

    if (v != NULL)
        ch_var_assign(r->s, v, value);
}

static ch_node *scalar(ch_step *s, ch_dtype dtype, double value)
{
    return ch_fill(s, dtype, ch_shape_scalar(), value);
}

static ch_node *rate_of(recording *r)
{
    if (r->o->has_schedule)
        return ch_schedule_node(&r->o->schedule, read_own(r, CH_OPT_ITERATIONS));
    return read_own(r, CH_OPT_RATE);
}

static ch_node *loss_scale_of(recording *r)
{
    return r->o->is_dynamic ? read_own(r, CH_OPT_LOSS_SCALE)
                            : scalar(r->s, CH_F32, r->o->loss_scale);
}

/* ---- gradients ---- */

static void note_dense(const ch_optimizer *o, const ch_var *v)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set_explicit(&said, memory_order_relaxed))
        ch__log(CH_LOG_INFO, "sparse-gradient-densified",
                "%s: the gradient of %s names a few rows, but the rule changes all of them",
                o->name, ch_var_name(v));
}

/* Summed over the replicas, looked at if it must be finite, and in f32 or f64. */
static void take_gradient(recording *r, gradient *g, ch_node *d)
{
    char message[300];

    d = ch_all_reduce(CH_SUM, d);
    if (d == NULL)
        return;
    if (ch__is_sparse(d) && !r->o->rule->is_sparse)
        note_dense(r->o, g->var);
    else if (ch__is_sparse(d))
        g->ids = d->head->in[0];
    g->value = g->ids != NULL ? d->head->in[1] : d;
    if (r->o->nonfinite == CH_NONFINITE_STOP) {
        snprintf(message, sizeof(message), "gradient of %s", ch_var_name(g->var));
        g->value = ch_check_numerics(g->value, message);
    }
    if (ch_var_dtype(g->var) != ch__opt_dtype(g->var))
        g->value = ch_cast(g->value, ch__opt_dtype(g->var));
}

static ch_node *all_finite(recording *r)
{
    for (int i = 0; i < r->n; i++)
        r->value[i] = r->g[i].value;
    return ch__are_finite(r->s, r->n, r->value);
}

/* ---- sums over steps ---- */

/* Ids, all of them -1 unless `when` holds. */
static ch_node *ids_if(ch_node *when, ch_node *ids)
{
    return when == NULL || ids == NULL ? ids : ch_select(when, ids, ch_full_like(ids, -1));
}

/* Adds a sparse gradient to its sum; the gradient becomes the rows that were touched. */
static void add_sparse(recording *r, gradient *g, ch_var *sum)
{
    ch_dim   n_rows = ch__dim(ch_var_shape(g->var).dim[0]);
    ch_var  *seen = slot_var(r, g->var, CH_OPT_TOUCHED);
    ch_node *rows = ch__sparse_rows(ids_if(r->finite, g->ids), g->value, n_rows), *mark, *all;

    g->value = g->ids = NULL;
    if (seen == NULL || rows == NULL)
        return;
    mark = ch__fill_dims(r->s, CH_BOOL, &rows->in[0]->dims, 1);
    mark = ch__node(&ch__op_scatter_update, NULL, 3,
                    ((ch_node *[]){ch_var_read(r->s, seen), rows->in[0], mark}));
    all = ch_range(r->s, CH_I64, 0, (double)n_rows.n, 1);
    g->ids = ch_select(mark, all, ch_full_like(all, -1));
    g->value = ch__add_sparse(ch_var_read(r->s, sum), rows, false);
    ch_var_assign(r->s, seen, mark);
}

/* Adds the gradient to what has been gathered so far, unless it is not finite. */
static void add_up(recording *r, gradient *g)
{
    ch_var  *v = slot_var(r, g->var, CH_OPT_SUM);
    ch_node *so_far, *sum;

    if (v == NULL || g->value == NULL)
        return;
    g->value = ch_div(g->value, ch_cast(r->divisor, g->value->dtype));
    if (g->ids != NULL) {
        add_sparse(r, g, v);
        sum = g->value;
    } else {
        so_far = ch_var_read(r->s, v);
        sum = ch_add(so_far, g->value);
        if (r->finite != NULL)
            sum = ch_select(r->finite, sum, so_far);
        g->value = sum;
    }
    ch_var_assign(r->s, v, sum);
}

/* Whether as many gradients as are wanted are there, with this step's. */
static void gather_steps(recording *r)
{
    ch_node *n =
        ch_add(read_own(r, CH_OPT_PENDING),
               r->finite != NULL ? ch_cast(r->finite, CH_I64) : scalar(r->s, CH_I64, 1));

    for (int i = 0; i < r->n; i++)
        add_up(r, &r->g[i]);
    r->apply = ch_equal(n, scalar(r->s, CH_I64, r->o->accumulate));
    write_own(r, CH_OPT_PENDING, ch__clear_if(n, r->apply));
    r->divisor = scalar(r->s, CH_F32, 1);
}

/* What has been applied is gathered no more. */
static void forget_steps(recording *r)
{
    for (int i = 0; i < r->n; i++) {
        ch_var *v = r->g[i].var;
        ch_var *sum = slot_var(r, v, CH_OPT_SUM);

        if (sum == NULL)
            return;
        ch_var_assign(r->s, sum, ch__clear_if(ch_var_read(r->s, sum), r->apply));
        if (r->g[i].ids != NULL) {
            ch_var *seen = slot_var(r, v, CH_OPT_TOUCHED);

            ch_var_assign(r->s, seen, ch__clear_if(ch_var_read(r->s, seen), r->apply));
        }
    }
}

/* ---- norms and numbers ---- */

/* The sum of squares of gradients [from, to); rows of one id count as their sum. */
static ch_node *squares_of(recording *r, int from, int to)
{
    for (int i = from; i < to; i++) {
        gradient *g = &r->g[i];

        if (g->ids != NULL && g->value != NULL && r->o->accumulate == 1)
            ch__merge_rows(g->ids, g->value, ch__dim(ch_var_shape(g->var).dim[0]), &g->ids,
                           &g->value);
        r->value[i] = g->value;
    }
    return ch__sum_squares(r->s, to - from, r->value + from);
}

static ch_node *make_hyper(recording *r, ch_dtype dtype, ch_node *rate, ch_node *global,
                           ch_node *squares)
{
    ch_node       *none = scalar(r->s, CH_F64, 0);
    ch_rule_inputs in = {.iterations = r->iterations,
                         .rate = rate,
                         .apply = r->apply != NULL ? r->apply : scalar(r->s, CH_BOOL, 1),
                         .divisor = r->divisor,
                         .squares = squares != NULL ? squares : none,
                         .squares_of_global = global != NULL ? global : none};

    return ch__hyper(r->o->rule->kind, dtype, &r->o->numbers, &in);
}

/* ---- updates ---- */

static void update_average(recording *r, gradient *g, ch_node *value)
{
    ch_var  *v = slot_var(r, g->var, CH_OPT_AVERAGE);
    ch_node *weight = scalar(r->s, ch__opt_dtype(g->var), 1 - r->o->average), *now;

    if (v == NULL)
        return;
    if (r->apply != NULL)
        weight = ch__clear_if(weight, ch_logical_not(r->apply));
    now = ch_var_read(r->s, v);
    ch_var_assign(r->s, v, ch_add(now, ch_mul(weight, ch_sub(value, now))));
}

static void update(recording *r, gradient *g, ch_node *hyper)
{
    const ch_rule *rule = r->o->rule;
    bool           wide = ch_var_dtype(g->var) == ch__opt_dtype(g->var);
    ch_var        *slot[CH_RULE_SLOTS], *held = g->var;
    ch_node       *now[CH_RULE_SLOTS], *value;

    if (!wide)
        held = slot_var(r, g->var, CH_OPT_MASTER);
    for (int i = 0; i < rule->n_slots; i++) {
        slot[i] = slot_var(r, g->var, i);
        now[i] = slot[i] != NULL ? ch_var_read(r->s, slot[i]) : NULL;
    }
    if (ch_step_status(r->s) != CH_OK)
        return;
    value = ch_var_read(r->s, held);
    value = g->ids != NULL ? ch__apply_rows(rule->kind, value, g->ids, g->value, hyper, now)
                           : ch__apply(rule->kind, value, g->value, hyper, now);
    ch_var_assign(r->s, held, value);
    for (int i = 0; i < rule->n_slots; i++)
        ch_var_assign(r->s, slot[i], now[i]);
    if (!wide) {
        ch_node *x = ch_var_read(r->s, g->var);

        ch_var_assign(r->s, g->var,
                      g->ids != NULL ? ch__round_rows(x, g->ids, value)
                                     : ch__round_over(x, value));
    }
    if (r->o->average > 0)
        update_average(r, g, value);
}

/* ---- counters ---- */

static void count(recording *r)
{
    ch_node *one = scalar(r->s, CH_I64, 1);

    write_own(r, CH_OPT_ITERATIONS,
              ch_add(r->iterations, r->apply != NULL ? ch_cast(r->apply, CH_I64) : one));
    if (r->finite != NULL)
        write_own(r, CH_OPT_SKIPPED,
                  ch_add(read_own(r, CH_OPT_SKIPPED), ch_sub(one, ch_cast(r->finite, CH_I64))));
}

static void change_loss_scale(recording *r)
{
    ch_node *scale = read_own(r, CH_OPT_LOSS_SCALE), *two = scalar(r->s, CH_F32, 2);
    ch_node *good = ch_add(read_own(r, CH_OPT_GOOD), scalar(r->s, CH_I64, 1));
    ch_node *rise = ch_equal(good, scalar(r->s, CH_I64, GOOD_STEPS));
    ch_node *up = ch_select(rise, ch_mul(scale, two), scale);
    ch_node *down = ch_maximum(ch_div(scale, two), scalar(r->s, CH_F32, 1));

    write_own(r, CH_OPT_LOSS_SCALE, ch_select(r->finite, up, down));
    write_own(r, CH_OPT_GOOD,
              ch__clear_if(good, ch_logical_or(rise, ch_logical_not(r->finite))));
}

/* ---- all of it ---- */

static void record_updates(recording *r)
{
    const ch_rule_numbers *set = &r->o->numbers;
    ch_node               *rate = rate_of(r), *global = NULL;

    if (r->o->nonfinite == CH_NONFINITE_SKIP)
        r->apply = r->finite = all_finite(r);
    if (r->o->accumulate > 1)
        gather_steps(r);
    if (set->clip_global_norm > 0)
        global = squares_of(r, 0, r->n);
    for (int i = 0; i < r->n && ch_step_status(r->s) == CH_OK; i++) {
        ch_dtype  dtype = ch__opt_dtype(r->g[i].var);
        ch_node **hyper = &r->hyper[dtype == CH_F64];

        if (*hyper == NULL || set->clip_norm > 0)
            *hyper = make_hyper(r, dtype, rate, global,
                                set->clip_norm > 0 ? squares_of(r, i, i + 1) : NULL);
        update(r, &r->g[i], *hyper);
    }
    if (r->o->accumulate > 1)
        forget_steps(r);
    count(r);
    if (r->o->is_dynamic)
        change_loss_scale(r);
}

static ch_status check_vars(const ch_optimizer *o, int n, ch_var *const *var)
{
    if (o == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "the optimizer is NULL");
    if (n < 0 || (n > 0 && var == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: there is no list of %d variables", o->name,
                        n);
    for (int i = 0; i < n; i++) {
        if (var[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %d is NULL", o->name, i);
        if (!ch_dtype_is_float(ch_var_dtype(var[i])))
            return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %s is %s, want a float type",
                            o->name, ch_var_name(var[i]), ch_dtype_name(ch_var_dtype(var[i])));
        for (int k = 0; k < i; k++)
            if (var[k] == var[i])
                return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %s is given twice", o->name,
                                ch_var_name(var[i]));
    }
    return CH_OK;
}

static ch_status check_gradients(const ch_optimizer *o, int n, ch_var *const *var,
                                 ch_node *const *d)
{
    if (n > 0 && d == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: there is no list of gradients", o->name);
    for (int i = 0; i < n; i++) {
        ch_dims want = ch__dims_of(ch_var_shape(var[i]));

        if (d[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: the gradient of %s is NULL", o->name,
                            ch_var_name(var[i]));
        if (d[i]->dtype != ch_var_dtype(var[i]) || !ch__dims_same(&d[i]->dims, &want))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: the gradient of %s has not its dtype and shape", o->name,
                            ch_var_name(var[i]));
    }
    return CH_OK;
}

/* Gradients are `divisor` times what they should be; NULL: they are as they should be. */
static void apply_all(ch_optimizer *o, ch_step *s, int n, ch_var *const *var, ch_node *const *d,
                      ch_node *divisor)
{
    recording r = {.o = o, .s = s, .n = n};

    take(s, check_gradients(o, n, var, d));
    r.g = ch__calloc((size_t)n + 1, sizeof(*r.g));
    r.value = ch__calloc((size_t)n + 1, sizeof(*r.value));
    if (r.g == NULL || r.value == NULL)
        take(s, ch__fail_memory("an optimizer"));
    r.iterations = read_own(&r, CH_OPT_ITERATIONS);
    r.divisor = divisor != NULL ? divisor : scalar(s, CH_F32, 1);
    for (int i = 0; i < n && ch_step_status(s) == CH_OK; i++) {
        r.g[i].var = var[i];
        take_gradient(&r, &r.g[i], d[i]);
    }
    if (ch_step_status(s) == CH_OK)
        record_updates(&r);
    ch__free(r.g);
    ch__free(r.value);
}

void ch_optimizer_apply(ch_optimizer *o, ch_step *s, int n, ch_var *const *var,
                        ch_node *const *d)
{
    const void *before;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return;
    before = ch__step_begin(s);
    take(s, check_vars(o, n, var));
    if (ch_step_status(s) == CH_OK)
        apply_all(o, s, n, var, d, NULL);
    ch__step_end(s, before);
}

/* The gradients of the loss times the loss scale, which is a factor of the first derivative:
 * the loss itself might overflow. */
static void differentiate(recording *r, ch_node *loss, ch_var *const *var, ch_node **d)
{
    ch_node **x = ch__calloc((size_t)r->n + 1, sizeof(*x)), *seed = NULL;

    if (x == NULL) {
        take(r->s, ch__fail_memory("an optimizer"));
        return;
    }
    if (r->divisor != NULL)
        seed = ch_mul(ch_ones_like(loss), ch_cast(r->divisor, ch_node_dtype(loss)));
    for (int i = 0; i < r->n; i++)
        x[i] = ch_var_read(r->s, var[i]);
    if (ch_step_status(r->s) == CH_OK)
        ch_gradients(loss, seed, r->n, x, d);
    ch__free(x);
}

void ch_optimizer_minimize(ch_optimizer *o, ch_step *s, ch_node *loss, int n,
                           ch_var *const *var)
{
    recording   r = {.o = o, .s = s, .n = n};
    const void *before;
    ch_node   **d;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return;
    before = ch__step_begin(s);
    take(s, check_vars(o, n, var));
    if (ch_step_status(s) == CH_OK && loss == NULL)
        take(s, ch__fail(CH_INVALID_ARGUMENT, "%s: the loss is NULL", o->name));
    d = ch_step_status(s) == CH_OK ? ch__calloc((size_t)n + 1, sizeof(*d)) : NULL;
    if (d == NULL)
        take(s, ch__fail_memory("an optimizer"));
    if (ch_step_status(s) == CH_OK) {
        r.divisor = o->loss_scale > 0 ? loss_scale_of(&r) : NULL;
        differentiate(&r, loss, var, d);
    }
    if (ch_step_status(s) == CH_OK)
        apply_all(o, s, n, var, d, r.divisor);
    ch__free(d);
    ch__step_end(s, before);
}

ch_node *ch_optimizer_rate_node(ch_optimizer *o, ch_step *s)
{
    recording   r = {.o = o, .s = s};
    const void *before;
    ch_node    *rate;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    before = ch__step_begin(s);
    take(s, check_vars(o, 0, NULL));
    rate = ch_step_status(s) == CH_OK ? rate_of(&r) : NULL;
    ch__step_end(s, before);
    return rate;
}
