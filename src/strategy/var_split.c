/* strategy/var_split.c -- how variables are split over the logical devices of a replica.
 *
 * Implements ch_var_split and ch_var_get_tile, and chooses the layouts of new variables.
 * var_cores.c stores the tiles.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "cohort/logical.h"
#include "spmd/search.h"
#include "strategy/strategy.h"
#include "tensor/device.h"
#include "tensor/print.h"

/* Sets *out to the layout of a variable that is split over the logical mesh of its strategy.
 * `call` begins the message. */
static ch_status layout_of_split(const ch_strategy *st, const ch_var *v, const char *call,
                                 int n, const int *axis, ch_core_layout *out)
{
    char what[192];

    snprintf(what, sizeof(what), "%s: variable %s", call, v->name);
    if (n != v->shape.rank)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "%s: the split has %d %s, want %d, the rank of the variable; give a mesh "
            "axis, CH_MESH_ALL or CH_OFF for each axis",
            what, n, n == 1 ? "axis" : "axes", v->shape.rank);
    return ch__layout_over_mesh(what, st->parts.n_mesh, st->parts.mesh, n, axis, out);
}

/* Gives a slot or another colocated variable the tiles of `beside`, along the axes in which the
 * sizes are equal. */
static void layout_beside(ch_var *v, const ch_var *beside, ch_core_layout *out)
{
    pthread_mutex_t *lock = &beside->strategy->lock;

    pthread_mutex_lock(lock); /* a search may move `beside` */
    ch__layout_beside(v->shape, beside->tiles, beside->shape, out);
    v->kin = beside->kin;
    v->is_open = beside->is_open;
    v->is_found = beside->is_found;
    pthread_mutex_unlock(lock);
}

/* ---- rules ---- */

ch_status ch__split_rules_copy(const char *strategy, int n, const ch_split_rule *rule,
                               ch_split_rule **out)
{
    size_t         bytes = 0;
    ch_split_rule *copy;
    char          *name;

    *out = NULL;
    if (n < 0 || (n > 0 && rule == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "strategy %s: %d split rules%s", strategy, n,
                        n < 0 ? ", want 0 or more" : ", and their list is NULL");
    if (n == 0)
        return CH_OK;
    for (int i = 0; i < n; i++) {
        if (rule[i].name == NULL || rule[i].n < 0 || rule[i].n > CH_MAX_RANK)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "strategy %s: split rule %d has %s; want a name, and 0 to %d axes",
                            strategy, i, rule[i].name == NULL ? "no name" : "another rank",
                            CH_MAX_RANK);
        bytes += sizeof(*rule) + strlen(rule[i].name) + 1;
    }
    copy = ch__malloc(bytes);
    if (copy == NULL)
        return ch__fail_memory("a strategy");
    name = (char *)&copy[n];
    for (int i = 0; i < n; i++) {
        size_t length = strlen(rule[i].name) + 1;

        copy[i] = rule[i];
        copy[i].name = memcpy(name, rule[i].name, length);
        name += length;
    }
    *out = copy;
    return CH_OK;
}

/* Returns true if a name matches a pattern, in which "*" stands for any characters. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = NULL, *again = name; /* the last "*", and where it ends in the name */

    while (*name != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            again = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star + 1;
            name = ++again;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

/* Returns the first rule that matches a variable; NULL: none. */
static const ch_split_rule *rule_of(const ch_strategy *st, const ch_var *v)
{
    for (int i = 0; i < st->parts.n_rules; i++)
        if (matches(st->parts.rule[i].name, v->name))
            return &st->parts.rule[i];
    return NULL;
}

static ch_status layout_of_rule(const ch_strategy *st, ch_var *v, const ch_split_rule *rule,
                                ch_core_layout *out)
{
    char call[128];

    snprintf(call, sizeof(call), "split rule \"%s\"", rule->name);
    v->rule = rule->name;
    return layout_of_split(st, v, call, rule->n, rule->axis, out);
}

static bool matches_any(const ch_split_rule *rule, int n, ch_var *const *v)
{
    for (int i = 0; i < n; i++)
        if (matches(rule->name, v[i]->name))
            return true;
    return false;
}

/* Logs that a rule matches no variable, with the names of the first variables. */
static void warn_of_rule(const ch_strategy *st, const ch_split_rule *rule, int n,
                         ch_var *const *v)
{
    const int max_listed = 12;
    char      names[512];
    ch_text   o = ch__text(names, sizeof(names));

    for (int i = 0; i < n && i < max_listed; i++)
        ch__text_add(&o, "%s%s", i > 0 ? ", " : "", v[i]->name);
    if (n > max_listed)
        ch__text_add(&o, " and %d more", n - max_listed);
    ch__log(CH_LOG_WARNING, "split-rule",
            "%s: split rule \"%s\" matches no variable, so it splits nothing; the variables "
            "are %s",
            st->label, rule->name, n > 0 ? names : "none");
}

void ch__split_rules_check(ch_strategy *st)
{
    ch_var **v = NULL;
    int      n = 0;

    if (st->parts.n_rules == 0 || atomic_exchange(&st->has_checked_rules, true))
        return;
    if (ch__strategy_vars(st, &n, &v) != CH_OK)
        return; /* there is no memory for the names */
    for (int i = 0; i < st->parts.n_rules; i++)
        if (!matches_any(&st->parts.rule[i], n, v))
            warn_of_rule(st, &st->parts.rule[i], n, v);
    for (int i = 0; i < n; i++)
        ch_var_unref(v[i]);
    ch__free(v);
}

/* Sets *out to the layout of a variable for which the program has chosen none. */
static void default_layout(const ch_strategy *st, ch_var *v, ch_core_layout *out)
{
    int64_t bytes = ch_shape_count(v->shape) * (int64_t)ch_dtype_bytes(v->dtype);
    bool    is_large = st->parts.split_bytes > 0 && bytes >= st->parts.split_bytes;
    int     longest = 0;

    for (int k = 1; k < v->shape.rank; k++)
        if (v->shape.dim[k] > v->shape.dim[longest])
            longest = k;
    v->is_open = st->parts.choose_layouts && !is_large;
    if ((is_large || v->is_open) && v->shape.rank > 0)
        ch__layout_over_cores(st->n_cores, v->shape.rank, longest, out);
    else if (st->parts.defaults_to_device_0 && !v->is_open)
        ch__layout_on_core(st->n_cores, v->shape.rank, 0, out);
    else
        ch__layout_replicated(st->n_cores, v->shape.rank, out);
}

ch_status ch__var_choose_tiles(ch_strategy *st, ch_var *v, const ch_var_spec *spec,
                               const ch_var *colocated)
{
    ch_core_layout      *l = ch__malloc(sizeof(*l));
    const ch_split_rule *rule = rule_of(st, v);
    ch_status            rc = CH_OK;

    if (l == NULL)
        return ch__fail_memory("a variable");
    if (st->parts.choose_layouts) {
        pthread_mutex_lock(&st->lock);
        v->kin = ++st->n_kin;
        pthread_mutex_unlock(&st->lock);
    }
    if (spec->split != NULL) {
        rc = layout_of_split(st, v, "ch_var_spec.split", spec->n_split, spec->split, l);
        v->is_split = rc == CH_OK;
    } else if (colocated != NULL && colocated->tiles != NULL) {
        layout_beside(v, colocated, l);
    } else if (ch__logical_device_chosen(st) >= 0) {
        ch__layout_on_core(st->n_cores, v->shape.rank, ch__logical_device_chosen(st), l);
    } else if (rule != NULL) {
        rc = layout_of_rule(st, v, rule, l);
    } else {
        default_layout(st, v, l);
    }
    if (rc == CH_OK)
        v->tiles = l;
    else
        ch__free(l);
    return rc;
}

void ch__var_note_use(ch_step *s, ch_var *v)
{
    const char *name = s->graph->name;
    size_t      size = strlen(name) + 1;

    if (v->tiles == NULL || ch__step_outermost(s)->is_discarded)
        return;
    pthread_mutex_lock(&v->strategy->lock);
    if (v->used_by == NULL && (v->used_by = ch__malloc(size)) != NULL)
        memcpy(v->used_by, name, size);
    pthread_mutex_unlock(&v->strategy->lock);
}

/* Returns FAILED_PRECONDITION unless v may get the layout `to`. */
static ch_status check_split(ch_var *v, const ch_core_layout *to)
{
    char      has[64], want[64];
    ch_status rc = CH_OK;

    (void)ch__core_layout_print(v->tiles, has, sizeof(has));
    (void)ch__core_layout_print(to, want, sizeof(want));
    pthread_mutex_lock(&v->strategy->lock);
    if (v->is_split)
        rc =
            ch__fail(CH_FAILED_PRECONDITION,
                     "ch_var_split: variable %s: it cannot be split as %s, because it has been "
                     "split as %s; split it once",
                     v->name, want, has);
    else if (v->used_by != NULL)
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "ch_var_split: variable %s: it cannot be split as %s, because the step "
                      "\"%s\" has used it as %s; split it before the first step that uses it",
                      v->name, want, v->used_by, has);
    pthread_mutex_unlock(&v->strategy->lock);
    return rc;
}

ch_status ch_var_split(ch_var *v, int n, const int *axis)
{
    ch_tile_move move = {.var = v};
    ch_status    rc =
        ch__check_not_null("ch_var_split", "the variable", v, n > 0 ? "axis" : NULL, axis);

    if (rc != CH_OK || v->tiles == NULL)
        return rc; /* replicas of this strategy have one device, which has the whole value */
    rc = layout_of_split(v->strategy, v, "ch_var_split", n, axis, &move.to);
    if (rc != CH_OK)
        return rc;
    if (!ch__layout_same_tiles(&move.to, v->tiles)) {
        rc = check_split(v, &move.to);
        if (rc == CH_OK)
            rc = ch__vars_set_tiles(1, &move);
    }
    if (rc == CH_OK) {
        v->is_split = true;
        v->is_open = false;
        v->rule = NULL;
    }
    return rc;
}

ch_status ch_var_get_tile(ch_var *v, int replica, int device, ch_tensor **out)
{
    int        n_cores;
    ch_tensor *tile, *copy = NULL;
    ch_status  rc = ch__check_not_null("ch_var_get_tile", "the variable", v, "out", out);

    if (rc == CH_OK)
        rc = ch__var_check_outside(v, "ch_var_read");
    if (rc != CH_OK)
        return rc;
    n_cores = v->strategy->n_cores;
    if (replica < 0 || replica >= v->strategy->n_local || device < 0 || device >= n_cores)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "ch_var_get_tile: variable %s: logical device %d of replica %d (want "
                        "devices 0 to %d of replicas 0 to %d)",
                        v->name, device, replica, n_cores - 1, v->strategy->n_local - 1);
    if (!ch__var_is_local(v))
        return ch__var_get(v, out);
    tile = v->tiles != NULL ? v->copy[replica * n_cores + device] : ch__var_copy(v, replica);
    if (tile == NULL)
        return ch__fail(
            CH_NOT_FOUND,
            "ch_var_get_tile: variable %s: logical device %d of replica %d has no tile",
            v->name, device, replica);
    rc = ch_tensor_new(v->dtype, tile->shape, &copy);
    if (rc == CH_OK)
        rc = ch_tensor_copy(tile, copy);
    if (rc == CH_OK)
        *out = copy;
    else
        ch_tensor_unref(copy);
    return rc;
}
