/* train/optimizer_step.c -- the steps that optimizers record.
 *
 * A `recording` is the state of a call of ch_optimizer_minimize or ch_optimizer_apply. The call
 * records, for all variables in turn: the gradients; their sums over the replicas; the checks
 * for finite numbers; the sums over steps (accumulation); the norms; the hyperparameters of the
 * run; the updates; the counters. Invariants:
 *
 *   1. The checks are recorded after the sum over the replicas, so that all replicas decide
 *      alike.
 *   2. No op can fail from the first update on, so a failed step changes no variable.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <stdio.h>

#include "base/log.h"
#include "cohort/ops.h"
#include "collective/collective.h"
#include "graph/step.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"
#include "strategy/strategy.h"
#include "train/optimizer.h"
#include "train/schedule.h"

#define GOOD_STEPS 2000 /* finite steps after which a dynamic loss scale doubles */

/* The gradient of a variable. */
typedef struct gradient {
    ch_var  *var;
    ch_node *ids;   /* row ids of a sparse gradient; else NULL */
    ch_node *value; /* rows of a sparse gradient, or the whole gradient */
} gradient;

typedef struct recording {
    ch_optimizer      *o;
    ch_step           *s;
    int                n;
    gradient          *g;
    const ch_opt_list *list;    /* sums of the list of variables; NULL: no accumulation */
    ch_node          **value;   /* scratch array of n */
    ch_node           *divisor; /* f32: divisor of the gradients, the loss scale */
    ch_node           *finite;  /* bool: all gradients are finite; NULL: not checked */
    ch_node           *apply;   /* bool: the step applies the gradients; NULL: it always does */
    ch_node           *iterations;
    /* Hyperparameters in f32 and f64. All variables share them, unless clip_norm is set. */
    ch_node *hyper[2];
} recording;

static void record_status(ch_step *s, ch_status rc)
{
    if (rc != CH_OK)
        ch__step_record_error(s, rc, NULL);
}

/* ---- the optimizer's own variables ---- */

static ch_node *read_own(recording *r, ch_opt_own which)
{
    ch_var *v = NULL;

    if (ch_step_status(r->s) == CH_OK)
        record_status(r->s, ch__opt_own(r->o, r->s->owner, which, &v));
    return v != NULL ? ch_var_read(r->s, v) : NULL;
}

/* Assigns the value to every copy of v, as ch_update does. All replicas have the same value,
 * because it follows from the summed gradients. So the aggregation of v must not be applied. */
static void assign(recording *r, ch_var *v, ch_node *value)
{
    const ch_step_context before = r->s->context;

    r->s->context = CH_STEP_CONTEXT_UPDATE;
    ch_var_assign(r->s, v, value);
    r->s->context = before;
}

static void write_own(recording *r, ch_opt_own which, ch_node *value)
{
    assign(r, r->o->own[which], value);
}

static ch_node *scalar(ch_step *s, ch_dtype dtype, double value)
{
    return ch_fill(s, dtype, ch_shape_scalar(), value);
}

static ch_node *rate_of(recording *r)
{
    if (r->o->has_schedule)
        return ch__schedule_node(&r->o->schedule, read_own(r, CH_OPT_ITERATIONS));
    return read_own(r, CH_OPT_RATE);
}

static ch_node *loss_scale_of(recording *r)
{
    if (r->o->is_dynamic)
        return read_own(r, CH_OPT_LOSS_SCALE);
    return scalar(r->s, CH_F32, r->o->loss_scale > 0 ? r->o->loss_scale : 1);
}

/* ---- gradients ---- */

/* Makes a sparse gradient dense, for a rule that changes all rows. Logs this once for each
 * variable. */
static ch_node *densify(recording *r, const ch_var *v, ch_node *d)
{
    ch_opt_entry *e = ch__opt_entry(r->o, v);

    if (!e->was_logged)
        ch__log(
            CH_LOG_INFO, "sparse-gradient-densified",
            "%s: the gradient of %s is sparse, but the rule changes all rows; it becomes dense",
            r->o->name, ch_var_name(v));
    e->was_logged = true;
    return ch__dense(d);
}

/* Sets g from a gradient that was summed over the replicas. Checks that it is finite if the
 * options say so, and casts it to the dtype of the arithmetic. */
static void set_gradient(recording *r, gradient *g, ch_node *d)
{
    char message[300];

    if (ch__is_sparse(d) && !r->o->rule->is_sparse)
        d = densify(r, g->var, d);
    if (d == NULL)
        return;
    if (ch__is_sparse(d))
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

/* Returns the ids, all replaced by -1 unless `when` is true. */
static ch_node *ids_if(ch_node *when, ch_node *ids)
{
    return when == NULL || ids == NULL ? ids : ch_select(when, ids, ch_full_like(ids, -1));
}

/* Adds a sparse gradient to its sum, and marks its rows. Afterwards g is the sum of all marked
 * rows. */
static void add_sparse(recording *r, gradient *g, const ch_opt_entry *e)
{
    ch_dim   n_rows = ch__dim(ch_var_shape(g->var).dim[0]);
    ch_var  *touched = e->slot[CH_OPT_TOUCHED];
    ch_node *rows = ch__sparse_rows(ids_if(r->finite, g->ids), g->value, n_rows), *mark;

    g->value = g->ids = NULL;
    if (rows == NULL)
        return;
    mark = ch__fill_dims(r->s, CH_BOOL, &rows->in[0]->dims, 1);
    mark = ch__node(&ch__op_scatter_update, NULL, 3,
                    ((ch_node *[]){ch_var_read(r->s, touched), rows->in[0], mark}));
    g->ids = ch__marked_ids(mark);
    g->value = ch__add_sparse(ch_var_read(r->s, e->slot[CH_OPT_SUM]), rows, false);
    assign(r, touched, mark);
}

/* Adds the gradient to its sum, unless it is not finite. Afterwards g is the sum. */
static void accumulate(recording *r, gradient *g, const ch_opt_entry *e)
{
    ch_var  *v = e->slot[CH_OPT_SUM];
    ch_node *so_far, *sum;

    if (g->value == NULL)
        return;
    g->value = ch_div(g->value, ch_cast(r->divisor, g->value->dtype));
    if (g->ids != NULL) {
        add_sparse(r, g, e);
        sum = g->value;
    } else {
        so_far = ch_var_read(r->s, v);
        sum = ch_add(so_far, g->value);
        if (r->finite != NULL)
            sum = ch_select(r->finite, sum, so_far);
        g->value = sum;
    }
    assign(r, v, sum);
}

/* Accumulates the gradients of this step. Sets r->apply if the sums then have as many steps as
 * the options say. */
static void accumulate_steps(recording *r)
{
    ch_node *n =
        ch_add(ch_var_read(r->s, r->list->pending),
               r->finite != NULL ? ch_cast(r->finite, CH_I64) : scalar(r->s, CH_I64, 1));

    for (int i = 0; i < r->n; i++)
        accumulate(r, &r->g[i], &r->list->entry[i]);
    r->apply = ch_equal(n, scalar(r->s, CH_I64, r->o->accumulate));
    assign(r, r->list->pending, ch__clear_if(n, r->apply));
    r->divisor = scalar(r->s, CH_F32, 1);
}

static void clear_applied(recording *r, ch_var *v)
{
    assign(r, v, ch__clear_if(ch_var_read(r->s, v), r->apply));
}

/* Clears the sums if they were applied. */
static void clear_sums(recording *r)
{
    for (int i = 0; i < r->n; i++) {
        clear_applied(r, r->list->entry[i].slot[CH_OPT_SUM]);
        if (r->g[i].ids != NULL)
            clear_applied(r, r->list->entry[i].slot[CH_OPT_TOUCHED]);
    }
}

/* ---- norms and hyperparameters ---- */

/* Returns the sum of squares of the gradients [from, to). Rows with the same id are added up
 * first. */
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

static void update_average(recording *r, gradient *g, ch_var *v, ch_node *value)
{
    ch_node *weight = scalar(r->s, ch__opt_dtype(g->var), 1 - r->o->average), *now;

    if (r->apply != NULL)
        weight = ch__clear_if(weight, ch_logical_not(r->apply));
    now = ch_var_read(r->s, v);
    assign(r, v, ch_add(now, ch_mul(weight, ch_sub(value, now))));
}

static ch_node *number_at(ch_node *hyper, ch_hyper which)
{
    return ch_reshape(ch_slice(hyper, 1, (int64_t[]){which}, (int64_t[]){1}),
                      ch_shape_scalar());
}

/* Returns the gradient as a rule uses it: scaled and clipped by value. */
static ch_node *scaled(ch_node *x, ch_node *hyper)
{
    ch_node *clip = number_at(hyper, CH_HYPER_CLIP);

    x = ch_mul(x, number_at(hyper, CH_HYPER_SCALE));
    return ch_maximum(ch_minimum(x, clip), ch_neg(clip));
}

/* Reshapes a number for each row so that it broadcasts along the rows of x. */
static ch_node *along_rows(ch_node *number, const ch_node *x)
{
    for (int k = 1; k < x->dims.rank; k++)
        number = ch_expand_dims(number, k);
    return number;
}

/* Records row-wise Adagrad for a variable that is sharded along another axis than the rows. No
 * server has a whole row, so the worker, which has the gradient, computes the mean of the
 * squares of each row. It reads the accumulators, a number for each row. The additions to the
 * accumulators and to the variable are sent to the servers. Returns the new value of the
 * variable. */
static ch_node *update_column_shards(recording *r, gradient *g, ch_node *value, ch_node *hyper,
                                     ch_node **slot)
{
    ch_node *off = ch_equal(number_at(hyper, CH_HYPER_APPLY), ch_number(r->s, 0)),
            *kept = value;
    ch_node *decay = number_at(hyper, CH_HYPER_DECAY), *sum = *slot, *x, *squares, *step;
    ch_dim   n_rows = ch__dim(ch_var_shape(g->var).dim[0]);
    int      axis[CH_MAX_RANK], rank = value != NULL ? value->dims.rank : 0;

    if (g->ids != NULL && r->o->accumulate == 1) /* rows with the same id are added up */
        ch__merge_rows(g->ids, g->value, n_rows, &g->ids, &g->value);
    if (g->ids != NULL) {
        sum = ch__gather_or_zero(sum, g->ids);
        kept = ch__gather_or_zero(value, g->ids);
    }
    for (int k = 1; k < rank; k++)
        axis[k - 1] = k;
    x = scaled(g->value, hyper);
    squares = ch_mean(ch_square(x), rank - 1, axis, false);
    step = ch_sqrt(ch_add(ch_add(sum, squares), number_at(hyper, CH_HYPER_EPSILON)));
    step = ch_div(number_at(hyper, CH_HYPER_RATE), step);
    step = ch_add(ch_mul(decay, kept), ch_mul(along_rows(step, x), x));
    step = ch__clear_if(step, off);
    squares = ch__clear_if(squares, off);
    if (g->ids == NULL) {
        *slot = ch_add(*slot, squares);
        return ch_sub(value, step);
    }
    *slot = ch__add_sparse(*slot, ch__sparse_rows(g->ids, squares, n_rows), false);
    return ch__add_sparse(value, ch__sparse_rows(g->ids, step, n_rows), true);
}

/* Applies the rule. Returns the new value, and replaces the slots by their new values. A rule
 * with norms needs the whole variable, so for a sharded variable the norms are computed
 * first. */
static ch_node *apply_rule(recording *r, gradient *g, ch_node *value, ch_node *hyper,
                           ch_node **slot)
{
    const ch_rule *rule = r->o->rule;
    int            axis = ch__opt_shard_axis(g->var);
    ch_node       *norms = NULL;

    if (rule->by_row && axis > 0)
        return update_column_shards(r, g, value, hyper, slot);
    if (g->ids != NULL)
        return ch__apply_rows(rule->kind, value, g->ids, g->value, hyper, slot);
    if (rule->has_norms && axis >= 0)
        norms = ch__apply_norms(rule->kind, value, g->value, hyper, slot);
    return ch__apply(rule->kind, value, g->value, norms, hyper, slot);
}

static void update(recording *r, gradient *g, ch_node *hyper)
{
    const ch_rule      *rule = r->o->rule;
    const ch_opt_entry *e = ch__opt_entry(r->o, g->var);
    ch_var  *master = e->slot[CH_OPT_MASTER], *exact = master != NULL ? master : g->var;
    ch_node *now[CH_RULE_SLOTS], *value = ch_var_read(r->s, exact);

    for (int i = 0; i < rule->n_slots; i++)
        now[i] = ch_var_read(r->s, e->slot[i]);
    value = apply_rule(r, g, value, hyper, now);
    assign(r, exact, value);
    for (int i = 0; i < rule->n_slots; i++)
        assign(r, e->slot[i], now[i]);
    if (master != NULL) {
        ch_node *x = ch_var_read(r->s, g->var);

        assign(r, g->var,
               g->ids != NULL ? ch__round_rows(x, g->ids, value) : ch__round_over(x, value));
    }
    if (r->o->average > 0)
        update_average(r, g, e->slot[CH_OPT_AVERAGE], value);
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

/* Doubles or halves the dynamic loss scale. It must stay finite: an infinite scale would make
 * all gradients infinite, and halving would not reduce it. */
static void change_loss_scale(recording *r)
{
    ch_node *scale = read_own(r, CH_OPT_LOSS_SCALE), *two = scalar(r->s, CH_F32, 2);
    ch_node *good = ch_add(read_own(r, CH_OPT_GOOD), scalar(r->s, CH_I64, 1));
    ch_node *rise = ch_equal(good, scalar(r->s, CH_I64, GOOD_STEPS));
    ch_node *fits = ch_less_equal(scale, scalar(r->s, CH_F32, (double)FLT_MAX / 2));
    ch_node *up = ch_select(ch_logical_and(rise, fits), ch_mul(scale, two), scale);
    ch_node *down = ch_maximum(ch_div(scale, two), scalar(r->s, CH_F32, 1));

    write_own(r, CH_OPT_LOSS_SCALE, ch_select(r->finite, up, down));
    write_own(r, CH_OPT_GOOD,
              ch__clear_if(good, ch_logical_or(rise, ch_logical_not(r->finite))));
}

/* ---- the whole step ---- */

static void record_updates(recording *r)
{
    const ch_rule_numbers *set = &r->o->numbers;
    ch_node               *rate = rate_of(r), *global = NULL;

    if (r->o->nonfinite == CH_NONFINITE_SKIP)
        r->apply = r->finite = all_finite(r);
    if (r->o->accumulate > 1)
        accumulate_steps(r);
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
        clear_sums(r);
    count(r);
    if (r->o->is_dynamic)
        change_loss_scale(r);
}

static ch_status check_call(const ch_optimizer *o, const ch_step *s)
{
    if (o != NULL && s->outer != NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "%s: call it in the step itself, not inside a cond, while or scan",
                        o->name);
    if (o != NULL && s->owner == NULL)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: it trains variables; steps of a dataset pipeline must not use variables",
            o->name);
    return CH_OK;
}

static ch_status check_gradients(const ch_optimizer *o, int n, ch_var *const *var,
                                 ch_node *const *d)
{
    if (n > 0 && d == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the list of gradients is NULL", o->name);
    for (int i = 0; i < n; i++) {
        ch_dims want = ch__dims_of(ch_var_shape(var[i]));
        char    has[160], wants[160];

        if (d[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: the gradient of %s is NULL", o->name,
                            ch_var_name(var[i]));
        if (d[i]->dtype == ch_var_dtype(var[i]) && ch__dims_same(&d[i]->dims, &want))
            continue;
        ch__dims_print(&d[i]->dims, has, sizeof(has));
        ch__dims_print(&want, wants, sizeof(wants));
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the gradient of %s is %s%s, want %s%s like the variable", o->name,
                        ch_var_name(var[i]), ch_dtype_name(d[i]->dtype), has,
                        ch_dtype_name(ch_var_dtype(var[i])), wants);
    }
    return CH_OK;
}

/* Applies the gradients `d`, which are multiplied by the loss scale. */
static void apply_all(recording *r, ch_var *const *var, ch_node *const *d)
{
    const int                      n = r->n;
    const ch_work_kind             before = r->s->work;
    const ch_communication_options how = ch__communication_of_step(r->s);
    ch_status                      rc = check_gradients(r->o, n, var, d);

    r->s->work = CH_WORK_UPDATE;

    if (rc == CH_OK)
        rc = ch__opt_build(r->o, r->s->owner, n, var);
    r->g = ch__calloc((size_t)n, sizeof(*r->g));
    r->value = ch__calloc((size_t)n, sizeof(*r->value));
    if (rc == CH_OK && (r->g == NULL || r->value == NULL))
        rc = ch__fail_memory("an optimizer");
    if (rc == CH_OK) {
        r->iterations = read_own(r, CH_OPT_ITERATIONS);
        r->divisor = loss_scale_of(r);
        r->list = ch__opt_list(r->o, n, var);
        ch__all_reduce_packs(NULL, CH_SUM, n, d, &how, r->value);
        for (int i = 0; i < n; i++) {
            r->g[i].var = var[i];
            set_gradient(r, &r->g[i], r->value[i]);
        }
        if (ch_step_status(r->s) == CH_OK)
            record_updates(r);
    }
    record_status(r->s, rc);
    r->s->work = before;
    ch__free(r->g);
    ch__free(r->value);
}

void ch_optimizer_apply(ch_optimizer *o, ch_step *s, int n, ch_var *const *var,
                        ch_node *const *d)
{
    recording     r = {.o = o, .s = s};
    ch_opt_joined w = {0};
    const void   *before;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return;
    before = ch__step_begin(s);
    record_status(s, check_call(o, s));
    if (ch_step_status(s) == CH_OK)
        record_status(s, ch__opt_join_shards(o, n, var, d, &w));
    r.n = w.n;
    if (ch_step_status(s) == CH_OK)
        apply_all(&r, w.var, d != NULL ? w.d : NULL);
    ch__opt_joined_drop(&w);
    ch__step_end(s, before);
}

/* Computes the gradients of the loss, multiplied by the loss scale. The scale is the seed of
 * the differentiation, and not a factor of the loss, because the scaled loss could overflow. */
static void differentiate(recording *r, ch_node *loss, ch_var *const *var, ch_node **d)
{
    ch_node          **x = ch__calloc((size_t)r->n, sizeof(*x)), *seed = NULL;
    const ch_work_kind before = r->s->work;

    if (x == NULL) {
        record_status(r->s, ch__fail_memory("an optimizer"));
        return;
    }
    r->s->work = CH_WORK_BACKWARD;
    if (r->o->loss_scale > 0)
        seed = ch_mul(ch_ones_like(loss), ch_cast(loss_scale_of(r), ch_node_dtype(loss)));
    for (int i = 0; i < r->n; i++)
        x[i] = ch_var_read(r->s, var[i]);
    if (ch_step_status(r->s) == CH_OK)
        ch_gradients(loss, seed, r->n, x, d);
    r->s->work = before;
    ch__free(x);
}

static void minimize(recording *r, ch_node *loss, ch_var *const *var)
{
    ch_node **d = ch__calloc((size_t)r->n, sizeof(*d));

    if (d == NULL) {
        record_status(r->s, ch__fail_memory("an optimizer"));
        return;
    }
    differentiate(r, loss, var, d);
    if (ch_step_status(r->s) == CH_OK)
        apply_all(r, var, d);
    ch__free(d);
}

static ch_status check_loss(const ch_optimizer *o, const ch_node *loss)
{
    char has[160];

    if (loss == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the loss is NULL", o->name);
    if (loss->dims.rank == 0)
        return CH_OK;
    ch__dims_print(&loss->dims, has, sizeof(has));
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s: the loss is %s%s, want one number; use ch_loss_average for a loss of each "
        "example, or ch_sum_all",
        o->name, ch_dtype_name(loss->dtype), has);
}

void ch_optimizer_minimize(ch_optimizer *o, ch_step *s, ch_node *loss, int n,
                           ch_var *const *var)
{
    recording     r = {.o = o, .s = s};
    ch_opt_joined w = {0};
    const void   *before;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return;
    before = ch__step_begin(s);
    record_status(s, check_call(o, s));
    if (ch_step_status(s) == CH_OK)
        record_status(s, ch__opt_join_shards(o, n, var, NULL, &w));
    if (ch_step_status(s) == CH_OK)
        record_status(s, check_loss(o, loss));
    r.n = w.n;
    if (ch_step_status(s) == CH_OK)
        minimize(&r, loss, w.var);
    ch__opt_joined_drop(&w);
    ch__step_end(s, before);
}

/* ---- rate and loss scale as nodes ---- */

/* Returns a number of the optimizer as a node with a weak dtype: it adopts the dtype of the
 * other operand. */
static ch_node *number_of(const void *caller, ch_optimizer *o, ch_step *s,
                          ch_node *(*number)(recording *r))
{
    recording   r = {.o = o, .s = s};
    const void *before;
    ch_node    *x = NULL;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    before = ch__step_begin_at(s, caller, NULL);
    if (o == NULL)
        record_status(s, ch__fail(CH_INVALID_ARGUMENT, "the optimizer is NULL"));
    else
        x = ch_identity(number(&r));
    if (x != NULL)
        x->weak = true;
    ch__step_end(s, before);
    return x;
}

ch_node *ch_optimizer_rate_node(ch_optimizer *o, ch_step *s)
{
    return number_of(__builtin_return_address(0), o, s, rate_of);
}

ch_node *ch_optimizer_loss_scale_node(ch_optimizer *o, ch_step *s)
{
    return number_of(__builtin_return_address(0), o, s, loss_scale_of);
}
