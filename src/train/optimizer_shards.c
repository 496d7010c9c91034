/* train/optimizer_shards.c -- shards among the variables of an optimizer.
 *
 * A rule is applied to whole variables. If the caller lists all shards of a variable, the
 * variable replaces them here.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "cohort/array.h"
#include "train/optimizer.h"

/* Returns the index of v in the list; n if it is not there. */
static int find(int n, ch_var *const *var, const ch_var *v)
{
    int i = 0;

    while (i < n && var[i] != v)
        i++;
    return i;
}

int ch__opt_shard_axis(ch_var *whole)
{
    ch_shape all = ch_var_shape(whole), shard_shape;
    int      axis = 0;

    if (ch_var_shards(whole) < 2)
        return -1;
    shard_shape = ch_var_shape(ch_var_shard(whole, 0));
    while (axis < all.rank - 1 && all.dim[axis] == shard_shape.dim[axis])
        axis++;
    return axis;
}

/* Checks that all shards of the variable `whole` are given. If `d` is not NULL, records its
 * gradient from those of the shards. */
static ch_status join(const char *name, int n, ch_var *const *var, ch_node *const *d,
                      ch_var *whole, ch_node **out)
{
    int       shards = ch_var_shards(whole);
    ch_node **part = ch__calloc((size_t)shards, sizeof(ch_node *));
    ch_status rc = part == NULL ? ch__fail_memory("an optimizer") : CH_OK;

    for (int i = 0; i < shards && rc == CH_OK; i++) {
        int at = find(n, var, ch_var_shard(whole, i));

        if (at == n)
            rc = ch__fail(
                CH_INVALID_ARGUMENT,
                "%s: not all shards of variable %s are given: %s is missing; give all shards, "
                "or the variable",
                name, ch_var_name(whole), ch_var_name(ch_var_shard(whole, i)));
        else if (d != NULL)
            part[i] = d[at];
    }
    if (rc == CH_OK && d != NULL)
        *out = ch_concat(shards, part, ch__opt_shard_axis(whole));
    ch__free(part);
    return rc;
}

static ch_status join_all(const char *name, int n, ch_var *const *var, ch_node *const *d,
                          ch_opt_joined *w)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_var *whole = ch_var_whole(var[i]);

        if (whole != var[i] && find(n, var, whole) < n)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: variable %s is given twice, because its shard %s is given too",
                            name, ch_var_name(whole), ch_var_name(var[i]));
        if (find(w->n, w->var, whole) < w->n)
            continue;
        w->var[w->n] = whole;
        if (whole != var[i])
            rc = join(name, n, var, d, whole, &w->d[w->n]);
        else if (d != NULL)
            w->d[w->n] = d[i];
        w->n++;
    }
    return rc;
}

ch_status ch__opt_join_shards(const ch_optimizer *o, int n, ch_var *const *var,
                              ch_node *const *d, ch_opt_joined *w)
{
    ch_status rc = ch__opt_check(o, n, var);

    *w = (ch_opt_joined){0};
    if (rc != CH_OK)
        return rc;
    w->var = ch__calloc((size_t)n, sizeof(ch_var *));
    w->d = ch__calloc((size_t)n, sizeof(ch_node *));
    rc = w->var == NULL || w->d == NULL ? ch__fail_memory("an optimizer")
                                        : join_all(o->name, n, var, d, w);
    return rc == CH_OK ? ch__opt_check(o, w->n, w->var) : rc;
}

void ch__opt_joined_drop(ch_opt_joined *w)
{
    ch__free(w->var);
    ch__free(w->d);
}
