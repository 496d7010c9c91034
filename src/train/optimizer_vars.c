/* train/optimizer_vars.c -- the variables of optimizers: creation, reading, averages.
 *
 * Creates the optimizer's own variables, the slots of the updated variables and, with
 * accumulation, the sums of lists. Also implements the functions that read an optimizer outside
 * a step. Invariants:
 *
 *   1. Creation is idempotent: a variable is created once and found again later. o->all has all
 *      variables. A variable is created with the value of a restore, if one waits for it under
 *      the name that ch__optimizer_visit gives (strategy/waiting.h).
 *   2. A 16-bit variable has a single master, which all optimizers share. It follows the
 *      variable: setting the variable sets the master (ch__var_follow).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "strategy/strategy.h"
#include "strategy/waiting.h"
#include "tensor/tensor.h"
#include "train/optimizer.h"
#include "train/parts.h"

/* ---- names ---- */

static const char *const own_name[CH_OPT_OWN] = {[CH_OPT_ITERATIONS] = "iterations",
                                                 [CH_OPT_RATE] = "rate",
                                                 [CH_OPT_SKIPPED] = "skipped",
                                                 [CH_OPT_LOSS_SCALE] = "loss_scale",
                                                 [CH_OPT_GOOD] = "good_steps"};

static const char pending_name[] = "pending";

static const char *slot_name(const ch_optimizer *o, int i)
{
    static const char *const more[] = {"master", "average", "sum", "touched"};

    return i < CH_RULE_SLOTS ? o->rule->slot[i] : more[i - CH_RULE_SLOTS];
}

/* Returns the entry of a variable in a list; NULL: the list does not have it. */
static ch_opt_entry *entry_in(const ch_opt_list *l, const ch_var *v)
{
    for (int i = 0; i < l->n; i++)
        if (l->entry[i].var == v)
            return &l->entry[i];
    return NULL;
}

/* The name of a slot in a list of variables. */
typedef struct list_name {
    char text[32];
} list_name;

/* Returns "sum" for the first list that has the variable, "sum_1" for its second list, and so
 * on. So the name is unique among the slots of the variable. */
static list_name name_in_list(const ch_optimizer *o, const ch_opt_list *l, const ch_var *v,
                              const char *slot)
{
    list_name name;
    int       earlier = 0;

    for (const ch_opt_list *before = o->list; before < l; before++)
        earlier += entry_in(before, v) != NULL;
    snprintf(name.text, sizeof(name.text), earlier > 0 ? "%s_%d" : "%s", slot, earlier);
    return name;
}

/* Visits the slots of a list. Returns false if the visit must end. */
static bool visit_list(const ch_optimizer *o, const ch_opt_list *l, ch_part_visit visit,
                       void *arg)
{
    ch_var *first = l->entry[0].var;

    if (l->pending != NULL &&
        !visit(arg, first, name_in_list(o, l, first, pending_name).text, l->pending))
        return false;
    for (int i = 0; i < l->n; i++)
        for (int k = CH_OPT_SUM; k <= CH_OPT_TOUCHED; k++) {
            const ch_opt_entry *e = &l->entry[i];

            if (e->slot[k] != NULL &&
                !visit(arg, e->var, name_in_list(o, l, e->var, slot_name(o, k)).text,
                       e->slot[k]))
                return false;
        }
    return true;
}

void ch__optimizer_visit(const ch_optimizer *o, ch_part_visit visit, void *arg)
{
    for (int i = 0; i < CH_OPT_OWN; i++)
        if (o->own[i] != NULL && !visit(arg, NULL, own_name[i], o->own[i]))
            return;
    for (int i = 0; i < o->n_entries; i++)
        for (int k = 0; k < CH_OPT_SLOTS; k++) {
            const ch_opt_entry *e = &o->entry[i];

            if (e->slot[k] != NULL && !visit(arg, e->var, slot_name(o, k), e->slot[k]))
                return;
        }
    for (int i = 0; i < o->n_lists; i++)
        if (!visit_list(o, &o->list[i], visit, arg))
            return;
}

/* ---- creation ---- */

/* Returns the path "of/by/name". `of` and `by` may be NULL; then they are left out. Returns
 * NULL if memory is exhausted. The caller frees the path. */
static char *path_of(const char *of, const char *by, const char *name)
{
    const char *part[] = {of, by, name};
    size_t      size = 0, at = 0;
    char       *path;

    for (int i = 0; i < 3; i++)
        size += part[i] != NULL ? strlen(part[i]) + 1 : 0;
    path = ch__malloc(size);
    for (int i = 0; i < 3 && path != NULL; i++)
        if (part[i] != NULL)
            at += (size_t)snprintf(path + at, size - at, "%s%s", at > 0 ? "/" : "", part[i]);
    return path;
}

/* Makes room for a variable in o->all. */
static ch_status reserve(ch_optimizer *o)
{
    return ch__grow((void **)&o->all, &o->cap_all, o->n_all + 1, sizeof(*o->all))
               ? CH_OK
               : ch__fail_memory("an optimizer");
}

/* A variable that the optimizer is about to create. */
typedef struct new_var {
    ch_strategy *st;
    ch_var      *of;      /* variable that a slot belongs to; NULL: no slot */
    ch_var      *beside;  /* the new variable is placed where this is; NULL: anywhere */
    const char  *name;    /* as in ch__optimizer_visit; a restore may wait for it */
    char        *path;    /* name of the variable, owned; NULL: memory is exhausted */
    bool         is_copy; /* the initial value is that of `of` */
    ch_dtype     dtype;
    ch_shape     shape;
    double       initial; /* initial value of all elements, unless it is a copy */
} new_var;

/* Returns the current value of the variable, in the dtype of its arithmetic. */
static ch_status value_of(ch_var *v, ch_tensor **out)
{
    ch_tensor *now = NULL;
    ch_status  rc = ch__var_get(v, &now);

    if (rc == CH_OK)
        rc = ch__tensor_cast(now, ch__opt_dtype(v), out);
    ch_tensor_unref(now);
    return rc;
}

/* Creates a variable and adds it to o->all. Takes ownership of n->path. */
static ch_status add_var(ch_optimizer *o, const new_var *n, ch_var **out)
{
    static const int everywhere = CH_OFF; /* a split of no axis */

    ch_var_spec spec = {
        .name = n->path, .trainable = CH_OFF, .dtype = n->dtype, .shape = n->shape};
    ch_waiting waiting;
    ch_status  rc = n->path != NULL ? reserve(o) : ch__fail_memory("an optimizer");

    if (n->initial != 0)
        spec.init = ch_init_constant(n->initial);
    if (n->beside == NULL && n->shape.rank == 0)
        spec.split = &everywhere; /* logical devices need its numbers for their variables */
    if (rc == CH_OK) {
        waiting = ch__waiting_find(o, n->of, n->name);
        if (n->is_copy && waiting.restore == NULL)
            rc = value_of(n->of, &spec.initial);
    }
    if (rc == CH_OK)
        rc = ch__waiting_create(&waiting, n->st, &spec, n->beside, out);
    if (rc == CH_OK)
        o->all[o->n_all++] = *out;
    ch__free(n->path);
    ch_tensor_unref(spec.initial);
    return rc;
}

ch_status ch__opt_own(ch_optimizer *o, ch_strategy *st, ch_opt_own which, ch_var **out)
{
    const struct {
        ch_dtype dtype;
        double   initial;
    } own[CH_OPT_OWN] = {[CH_OPT_ITERATIONS] = {CH_I64, 0},
                         [CH_OPT_RATE] = {CH_F64, o->rate},
                         [CH_OPT_SKIPPED] = {CH_I64, 0},
                         [CH_OPT_LOSS_SCALE] = {CH_F32, o->loss_scale},
                         [CH_OPT_GOOD] = {CH_I64, 0}};
    ch_status rc = CH_OK;

    if (o->own[which] == NULL)
        rc = add_var(o,
                     &(new_var){.st = st,
                                .name = own_name[which],
                                .path = path_of(NULL, o->name, own_name[which]),
                                .dtype = own[which].dtype,
                                .shape = ch_shape_scalar(),
                                .initial = own[which].initial},
                     &o->own[which]);
    if (out != NULL)
        *out = o->own[which];
    return rc;
}

ch_opt_entry *ch__opt_entry(const ch_optimizer *o, const ch_var *v)
{
    for (int i = 0; i < o->n_entries; i++)
        if (o->entry[i].var == v)
            return &o->entry[i];
    return NULL;
}

/* Uses the master of the variable if another optimizer has created it. */
static ch_status use_master(ch_optimizer *o, ch_opt_entry *e)
{
    ch_var   *found = ch__var_next_follower(e->var, NULL);
    ch_status rc = CH_OK;

    if (found == NULL)
        return CH_OK;
    rc = reserve(o);
    if (rc == CH_OK)
        e->slot[CH_OPT_MASTER] = o->all[o->n_all++] = found;
    else
        ch_var_unref(found);
    return rc;
}

/* Creates slot i of an entry, unless it exists. `name` is its name in ch__optimizer_visit. */
static ch_status make_slot(ch_optimizer *o, ch_opt_entry *e, int i, const char *name)
{
    bool      is_master = i == CH_OPT_MASTER, is_by_row = i == 0 && o->rule->by_row;
    ch_shape  shape = ch_var_shape(e->var);
    ch_status rc = CH_OK;

    if (e->slot[i] == NULL && is_master)
        rc = use_master(o, e);
    if (e->slot[i] != NULL || rc != CH_OK)
        return rc;
    if ((i == CH_OPT_TOUCHED || is_by_row) && shape.rank > 0)
        shape.rank = 1;
    rc = add_var(o,
                 &(new_var){.st = ch_var_strategy(e->var),
                            .of = e->var,
                            .beside = e->var,
                            .name = name,
                            .path = path_of(ch_var_name(e->var), is_master ? NULL : o->name,
                                            slot_name(o, i)),
                            .is_copy = is_master || i == CH_OPT_AVERAGE,
                            .dtype = i == CH_OPT_TOUCHED ? CH_BOOL : ch__opt_dtype(e->var),
                            .shape = shape,
                            .initial = i == 0 && o->rule->has_initial ? o->initial : 0},
                 &e->slot[i]);
    if (rc == CH_OK && is_master)
        ch__var_follow(e->slot[i], e->var);
    return rc;
}

static ch_status build_slots(ch_optimizer *o, ch_var *v)
{
    ch_opt_entry *e = ch__opt_entry(o, v);
    ch_status     rc = CH_OK;

    if (e == NULL) {
        if (!ch__grow((void **)&o->entry, &o->cap_entries, o->n_entries + 1, sizeof(*o->entry)))
            return ch__fail_memory("an optimizer");
        e = &o->entry[o->n_entries++];
        *e = (ch_opt_entry){.var = ch_var_ref(v)};
    }
    for (int i = 0; i < o->rule->n_slots && rc == CH_OK; i++)
        rc = make_slot(o, e, i, slot_name(o, i));
    if (rc == CH_OK && ch_var_dtype(v) != ch__opt_dtype(v))
        rc = make_slot(o, e, CH_OPT_MASTER, slot_name(o, CH_OPT_MASTER));
    if (rc == CH_OK && o->average > 0)
        rc = make_slot(o, e, CH_OPT_AVERAGE, slot_name(o, CH_OPT_AVERAGE));
    return rc;
}

ch_opt_list *ch__opt_list(const ch_optimizer *o, int n, ch_var *const *var)
{
    for (int i = 0; i < o->n_lists; i++) {
        int k = 0;

        while (k < n && k < o->list[i].n && o->list[i].entry[k].var == var[k])
            k++;
        if (k == n && k == o->list[i].n)
            return &o->list[i];
    }
    return NULL;
}

/* Creates the sum of variable i of a list and, for a sparse rule, the marks of its rows. */
static ch_status build_sum(ch_optimizer *o, ch_opt_list *l, int i)
{
    ch_opt_entry *e = &l->entry[i];
    int           last =
        o->rule->is_sparse && ch_var_shape(e->var).rank > 0 ? CH_OPT_TOUCHED : CH_OPT_SUM;
    ch_status rc = CH_OK;

    for (int k = CH_OPT_SUM; k <= last && rc == CH_OK; k++)
        rc = make_slot(o, e, k, name_in_list(o, l, e->var, slot_name(o, k)).text);
    return rc;
}

/* Creates the sums of a list of variables. Its counter is named after the first variable. */
static ch_status build_list(ch_optimizer *o, int n, ch_var *const *var)
{
    ch_opt_list *l = ch__opt_list(o, n, var);
    ch_status    rc = CH_OK;

    if (l == NULL) {
        if (!ch__grow((void **)&o->list, &o->cap_lists, o->n_lists + 1, sizeof(*o->list)))
            return ch__fail_memory("an optimizer");
        l = &o->list[o->n_lists];
        *l = (ch_opt_list){n, ch__calloc((size_t)n, sizeof(*l->entry)), NULL};
        if (l->entry == NULL)
            return ch__fail_memory("an optimizer");
        for (int i = 0; i < n; i++)
            l->entry[i].var = var[i];
        o->n_lists++;
    }
    if (l->pending == NULL)
        rc = add_var(o,
                     &(new_var){.st = ch_var_strategy(var[0]),
                                .of = var[0],
                                .name = name_in_list(o, l, var[0], pending_name).text,
                                .path = path_of(ch_var_name(var[0]), o->name, pending_name),
                                .dtype = CH_I64,
                                .shape = ch_shape_scalar()},
                     &l->pending);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = build_sum(o, l, i);
    return rc;
}

ch_status ch__opt_build(ch_optimizer *o, ch_strategy *st, int n, ch_var *const *var)
{
    const bool needs[CH_OPT_OWN] = {[CH_OPT_ITERATIONS] = true,
                                    [CH_OPT_RATE] = !o->has_schedule,
                                    [CH_OPT_SKIPPED] = o->nonfinite == CH_NONFINITE_SKIP,
                                    [CH_OPT_LOSS_SCALE] = o->is_dynamic,
                                    [CH_OPT_GOOD] = o->is_dynamic};
    ch_status  rc = CH_OK;

    for (int i = 0; i < CH_OPT_OWN && rc == CH_OK; i++)
        if (needs[i])
            rc = ch__opt_own(o, st, (ch_opt_own)i, NULL);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = build_slots(o, var[i]);
    if (rc == CH_OK && o->accumulate > 1)
        rc = build_list(o, n, var);
    return rc;
}

ch_status ch__opt_check(const ch_optimizer *o, int n, ch_var *const *var)
{
    if (o == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "the optimizer is NULL");
    if (n < 0 || (n > 0 && var == NULL))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the list of %d variables is NULL, or its length is negative",
                        o->name, n);
    if (n == 0)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: there is nothing to train, because the list of variables is empty; a model "
            "has variables after its first call, or if ch_model_new was given its "
            "inputs",
            o->name);
    for (int i = 0; i < n; i++) {
        if (var[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %d is NULL", o->name, i);
        if (!ch_dtype_is_float(ch_var_dtype(var[i])))
            return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %s is %s, want a float type",
                            o->name, ch_var_name(var[i]), ch_dtype_name(ch_var_dtype(var[i])));
        if (!ch_var_is_trainable(var[i]))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: variable %s is not trainable, because it was created with "
                            "trainable CH_OFF",
                            o->name, ch_var_name(var[i]));
        for (int k = 0; k < i; k++)
            if (var[k] == var[i])
                return ch__fail(CH_INVALID_ARGUMENT, "%s: variable %s is given twice", o->name,
                                ch_var_name(var[i]));
    }
    return CH_OK;
}

ch_status ch_optimizer_build(ch_optimizer *o, int n, ch_var *const *var)
{
    ch_opt_joined w;
    ch_status     rc = ch__opt_join_shards(o, n, var, NULL, &w);

    if (rc == CH_OK)
        rc = ch__opt_build(o, ch_var_strategy(var[0]), w.n, w.var);
    ch__opt_joined_drop(&w);
    return rc;
}

/* Clears the pointer of an entry to a variable. */
static void clear_slot(ch_opt_entry *e, const ch_var *v)
{
    for (int i = 0; i < CH_OPT_SLOTS; i++)
        if (e->slot[i] == v)
            e->slot[i] = NULL;
}

void ch__optimizer_drop_vars(ch_optimizer *o, int n)
{
    while (o->n_all > n) {
        ch_var *v = o->all[--o->n_all];

        for (int i = 0; i < CH_OPT_OWN; i++)
            if (o->own[i] == v)
                o->own[i] = NULL;
        for (int i = 0; i < o->n_entries; i++)
            clear_slot(&o->entry[i], v);
        for (int i = 0; i < o->n_lists; i++) {
            if (o->list[i].pending == v)
                o->list[i].pending = NULL;
            for (int k = 0; k < o->list[i].n; k++)
                clear_slot(&o->list[i].entry[k], v);
        }
        ch_var_unref(v);
    }
}

/* ---- reading ---- */

static ch_status check(const ch_optimizer *o, const void *out)
{
    if (o == NULL || out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "optimizer: %s is NULL",
                        o == NULL ? "the optimizer" : "out");
    return CH_OK;
}

/* Reads one of the optimizer's own variables; returns `otherwise` if it does not exist yet. */
static ch_status get_own(ch_optimizer *o, ch_opt_own which, double otherwise, double *out)
{
    ch_tensor *t = NULL;
    double     x = otherwise;
    ch_status  rc = check(o, out);

    if (rc == CH_OK && o->own[which] != NULL)
        rc = ch_var_get(o->own[which], &t);
    if (rc == CH_OK && t != NULL)
        rc = ch_tensor_item(t, &x);
    if (rc == CH_OK)
        *out = x;
    ch_tensor_unref(t);
    return rc;
}

static ch_status get_count(ch_optimizer *o, ch_opt_own which, int64_t *out)
{
    ch_tensor *t = NULL;
    ch_status  rc = check(o, out);

    if (rc == CH_OK && o->own[which] != NULL)
        rc = ch_var_get(o->own[which], &t);
    if (rc == CH_OK)
        *out = t != NULL ? *(const int64_t *)ch_tensor_data(t) : 0;
    ch_tensor_unref(t);
    return rc;
}

ch_status ch_optimizer_rate(ch_optimizer *o, double *out)
{
    int64_t   done = 0;
    ch_status rc = check(o, out);

    if (rc != CH_OK)
        return rc;
    if (!o->has_schedule)
        return get_own(o, CH_OPT_RATE, o->rate, out);
    rc = get_count(o, CH_OPT_ITERATIONS, &done);
    if (rc == CH_OK)
        *out = ch_schedule_at(&o->schedule, done);
    return rc;
}

ch_status ch_optimizer_loss_scale(ch_optimizer *o, double *out)
{
    ch_status rc = check(o, out);

    return rc == CH_OK
               ? get_own(o, CH_OPT_LOSS_SCALE, o->loss_scale > 0 ? o->loss_scale : 1, out)
               : rc;
}

ch_status ch_optimizer_iterations(ch_optimizer *o, int64_t *out)
{
    return get_count(o, CH_OPT_ITERATIONS, out);
}

ch_status ch_optimizer_skipped(ch_optimizer *o, int64_t *out)
{
    return get_count(o, CH_OPT_SKIPPED, out);
}

int ch_optimizer_vars(ch_optimizer *o, ch_var *const **out)
{
    if (out != NULL)
        *out = o != NULL ? o->all : NULL;
    return o != NULL ? o->n_all : 0;
}

static ch_var *find_slot(const ch_optimizer *o, const ch_opt_entry *e, const char *name)
{
    for (int i = 0; i < CH_OPT_SLOTS; i++)
        if (e->slot[i] != NULL && strcmp(slot_name(o, i), name) == 0)
            return e->slot[i];
    return NULL;
}

/* Returns the sum of a variable in a list or, for its first variable, the counter. */
static ch_var *find_in_list(const ch_optimizer *o, const ch_opt_list *l, const ch_var *v,
                            const char *name)
{
    const ch_opt_entry *e = entry_in(l, v);

    if (l->entry[0].var == v && strcmp(pending_name, name) == 0)
        return l->pending;
    return e != NULL ? find_slot(o, e, name) : NULL;
}

ch_var *ch_optimizer_slot(ch_optimizer *o, const ch_var *v, const char *slot)
{
    const ch_opt_entry *e = o != NULL && v != NULL && slot != NULL ? ch__opt_entry(o, v) : NULL;
    ch_var             *found = e != NULL ? find_slot(o, e, slot) : NULL;

    for (int i = 0; e != NULL && i < o->n_lists && found == NULL; i++)
        found = find_in_list(o, &o->list[i], v, slot);
    return found;
}

/* ---- averages ---- */

static ch_status check_average(const ch_optimizer *o)
{
    if (o->average > 0)
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "%s: it has no averages; create it with the option average", o->name);
}

ch_status ch_optimizer_average(ch_optimizer *o, ch_var *v, ch_tensor **out)
{
    ch_tensor *t = NULL;
    ch_status  rc = check(o, out);

    if (rc == CH_OK && v == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: the variable is NULL", o->name);
    if (rc == CH_OK)
        rc = check_average(o);
    if (rc == CH_OK && ch__opt_entry(o, v) == NULL)
        rc = ch__fail(CH_NOT_FOUND, "%s: no step that trains %s was recorded yet", o->name,
                      ch_var_name(v));
    if (rc == CH_OK)
        rc = ch_var_get(ch__opt_entry(o, v)->slot[CH_OPT_AVERAGE], &t);
    if (rc == CH_OK)
        rc = ch__tensor_cast(t, ch_var_dtype(v), out);
    ch_tensor_unref(t);
    return rc;
}

/* Swaps the value and its average. If there is a master, its f32 value is swapped, and the
 * 16-bit variable gets the rounded average. */
static ch_status swap(const ch_opt_entry *e)
{
    ch_var    *exact = e->slot[CH_OPT_MASTER] != NULL ? e->slot[CH_OPT_MASTER] : e->var;
    ch_var    *average = e->slot[CH_OPT_AVERAGE];
    ch_tensor *a = NULL, *b = NULL, *rounded = NULL;
    ch_status  rc = average != NULL ? ch_var_get(exact, &a) : CH_OK;

    if (average == NULL)
        return CH_OK;
    if (rc == CH_OK)
        rc = ch_var_get(average, &b);
    if (rc == CH_OK)
        rc = ch__tensor_cast(b, ch_var_dtype(e->var), &rounded);
    if (rc == CH_OK)
        /* First, because setting the variable also sets the master. */
        rc = ch_var_set(e->var, rounded);
    if (rc == CH_OK && exact != e->var)
        rc = ch_var_set(exact, b);
    if (rc == CH_OK)
        rc = ch_var_set(average, a);
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch_tensor_unref(rounded);
    return rc;
}

ch_status ch_optimizer_swap_averages(ch_optimizer *o)
{
    ch_status rc = check(o, o);

    if (rc == CH_OK)
        rc = check_average(o);
    for (int i = 0; rc == CH_OK && i < o->n_entries; i++)
        rc = swap(&o->entry[i]);
    return rc;
}
