/* strategy/values.c -- per-replica values: split by replica, or made by a function.
 *
 * Implements ch_strategy_local_results and ch_strategy_distribute_values_from_function, and the
 * helpers of strategy/values.h that map the leaves of a tuple.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/values.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

/* ---- building tuples ---- */

/* The leaves of a tuple that is being built. */
typedef struct leaves {
    int          n;
    ch_value   **value;
    const char **name; /* borrowed from another tuple */
} leaves;

static void drop_leaves(leaves *l)
{
    for (int i = 0; l->value != NULL && i < l->n; i++)
        ch_value_unref(l->value[i]);
    ch__free(l->value);
    ch__free(l->name);
}

/* Allocates leaves with the names of `like`. The caller must call drop_leaves, also on an
 * error. */
static ch_status new_leaves(const char *call, const ch_tuple *like, leaves *l)
{
    l->n = like->n;
    l->value = ch__calloc((size_t)l->n + 1, sizeof(ch_value *));
    l->name = ch__calloc((size_t)l->n + 1, sizeof(char *));
    if (l->value == NULL || l->name == NULL)
        return ch__fail_memory(call);
    for (int i = 0; i < l->n; i++)
        l->name[i] = like->leaf[i].name;
    return CH_OK;
}

/* Adds the name or number of a leaf to the message. */
static ch_status fail_at_leaf(ch_status rc, const ch_tuple *t, int i)
{
    return t->leaf[i].name != NULL ? ch__fail_at(rc, "leaf \"%s\"", t->leaf[i].name)
                                   : ch__fail_at(rc, "leaf %d", i);
}

ch_status ch__tuple_map(const char *call, const ch_tuple *t, ch_leaf_fn fn, void *arg,
                        ch_tuple **out)
{
    leaves    l;
    ch_status rc = new_leaves(call, t, &l);

    for (int i = 0; i < t->n && rc == CH_OK; i++) {
        ch_tensor *x = NULL;

        rc = fn(arg, t->leaf[i].value, &x);
        if (rc != CH_OK)
            rc = fail_at_leaf(rc, t, i);
        else
            rc = ch_value_new(CH_PLAIN, 1, &x, &l.value[i]);
        ch_tensor_unref(x);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(l.n, l.value, l.name, out);
    drop_leaves(&l);
    return rc;
}

/* ---- splitting ---- */

/* Stores the component of replica *arg (ch_leaf_fn). */
static ch_status component(void *arg, const ch_value *v, ch_tensor **out)
{
    *out = ch_tensor_ref(ch_value_at(v, *(const int *)arg));
    return CH_OK;
}

ch_status ch__tuple_of_replica(const char *call, const ch_tuple *t, int replica, ch_tuple **out)
{
    return ch__tuple_map(call, t, component, &replica, out);
}

static ch_status check_counts(const ch_strategy *st, const ch_tuple *t)
{
    for (int i = 0; i < t->n; i++) {
        const ch_value *v = t->leaf[i].value;

        if (v->kind != CH_PLAIN && v->n != st->n_local)
            return fail_at_leaf(
                ch__fail(CH_INVALID_ARGUMENT,
                         "local results: the value has %d components, and %s has %d replicas",
                         v->n, st->label, st->n_local),
                t, i);
    }
    return CH_OK;
}

/* Makes a tuple of the same values. A strategy that is_bare does not split values (2.3.4). */
static ch_status copy_tuple(const ch_tuple *t, ch_tuple **out)
{
    leaves    l;
    ch_status rc = new_leaves("local results", t, &l);

    for (int i = 0; i < t->n && rc == CH_OK; i++)
        l.value[i] = ch_value_ref(t->leaf[i].value);
    if (rc == CH_OK)
        rc = ch_tuple_new(l.n, l.value, l.name, out);
    drop_leaves(&l);
    return rc;
}

ch_status ch_strategy_local_results(ch_strategy *st, const ch_tuple *t, int n, ch_tuple **out)
{
    ch_tuple **each;
    ch_status  rc = ch__check_not_null("local results", "the tuple", t, "out", out);

    st = ch__strategy_or_current(st);
    if (rc == CH_OK && n != st->n_local)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "local results: wrong number of tuples (got n = %d, want %d, the local "
                      "replicas of %s); give room for ch_strategy_local_replicas",
                      n, st->n_local, st->label);
    if (rc == CH_OK && st->parts.is_bare)
        return copy_tuple(t, out);
    if (rc == CH_OK)
        rc = check_counts(st, t);
    if (rc != CH_OK)
        return rc;
    each = ch__calloc((size_t)st->n_local, sizeof(ch_tuple *));
    if (each == NULL)
        return ch__fail_memory("local results");
    for (int r = 0; r < st->n_local && rc == CH_OK; r++)
        rc = ch__tuple_of_replica("local results", t, r, &each[r]);
    for (int r = 0; r < st->n_local; r++)
        if (rc == CH_OK)
            out[r] = each[r];
        else
            ch_tuple_unref(each[r]);
    ch__free(each);
    return rc;
}

/* ---- values of a function ---- */

/* Calls the program's function for a replica, and checks that the leaves are plain. */
static ch_status call_value_fn(ch_value_fn fn, void *arg, const ch_value_context *c,
                               ch_tuple **out)
{
    uint64_t  mark = ch__fail_mark();
    ch_status rc = ch__fail_since(mark, fn(c, arg, out));

    if (rc == CH_OK && *out == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "the function returned CH_OK and no tuple");
    for (int i = 0; rc == CH_OK && i < (*out)->n; i++)
        if ((*out)->leaf[i].value->kind != CH_PLAIN)
            rc = fail_at_leaf(
                ch__fail(CH_INVALID_ARGUMENT,
                         "the function's value for one replica has several components; "
                         "want plain values"),
                *out, i);
    return rc == CH_OK ? rc
                       : ch__fail_at(rc, "values of a function, replica %d of %d", c->replica,
                                     c->n_replicas);
}

/* Returns INVALID_ARGUMENT unless the tuple of a replica has the same leaves as that of replica
 * 0. */
static ch_status check_alike(const ch_tuple *first, const ch_tuple *t, int replica)
{
    if (t->n != first->n)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "values of a function: replicas 0 and %d have %d and %d leaves; want "
                        "equally many",
                        replica, first->n, t->n);
    for (int i = 0; i < t->n; i++) {
        const char *a = first->leaf[i].name, *b = t->leaf[i].name;

        if ((a == NULL) != (b == NULL) || (a != NULL && strcmp(a, b) != 0))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "values of a function: leaf %d is named \"%s\" for replica 0 and "
                            "\"%s\" for replica %d; want one name",
                            i, a != NULL ? a : "", b != NULL ? b : "", replica);
    }
    return CH_OK;
}

/* Joins leaf i of the tuples of n replicas to a per-replica value. `tensors` is scratch
 * memory. */
static ch_status join_leaf(int n, ch_tuple *const *each, int i, ch_tensor **tensors,
                           ch_value **out)
{
    for (int r = 0; r < n; r++)
        tensors[r] = each[r]->leaf[i].value->tensor[0];
    return ch_value_new(CH_PER_REPLICA, n, tensors, out);
}

/* Joins the tuples of n replicas to a tuple of per-replica values. */
static ch_status join(int n, ch_tuple *const *each, ch_tuple **out)
{
    ch_tensor **tensors = ch__calloc((size_t)n, sizeof(ch_tensor *));
    leaves      l;
    ch_status   rc = new_leaves("values of a function", each[0], &l);

    if (rc == CH_OK && tensors == NULL)
        rc = ch__fail_memory("values of a function");
    for (int r = 1; r < n && rc == CH_OK; r++)
        rc = check_alike(each[0], each[r], r);
    for (int i = 0; i < l.n && rc == CH_OK; i++)
        rc = join_leaf(n, each, i, tensors, &l.value[i]);
    if (rc == CH_OK)
        rc = ch_tuple_new(l.n, l.value, l.name, out);
    drop_leaves(&l);
    ch__free(tensors);
    return rc;
}

ch_status ch_strategy_distribute_values_from_function(ch_strategy *st, ch_value_fn fn,
                                                      void *arg, ch_tuple **out)
{
    ch_tuple **each;
    ch_status  rc = CH_OK;

    if (fn == NULL || out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "values of a function: %s is NULL",
                        fn == NULL ? "the function" : "out");
    st = ch__strategy_or_current(st);
    each = ch__calloc((size_t)st->n_local, sizeof(ch_tuple *));
    if (each == NULL)
        return ch__fail_memory("values of a function");
    for (int r = 0; r < st->n_local && rc == CH_OK; r++)
        rc = call_value_fn(fn, arg, &(ch_value_context){r, st->n_replicas}, &each[r]);
    if (rc == CH_OK && st->parts.is_bare)
        *out = ch_tuple_ref(each[0]);
    else if (rc == CH_OK)
        rc = join(st->n_local, each, out);
    for (int r = 0; r < st->n_local; r++)
        ch_tuple_unref(each[r]);
    ch__free(each);
    return rc;
}
