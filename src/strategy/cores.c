/* strategy/cores.c -- divides the steps of a strategy whose replicas have several logical
 * devices (cores).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/cores.h"

#include "base/fault.h"

/* Sets *out to the layout of a variable (ch_spmd_options.variable). The value of a borrowed
 * variable is in a tensor that all members read, so every core has all of it. */
static ch_status variable_layout(void *arg, const ch_resource *r, ch_core_layout *out,
                                 ch_layout_source *source, const char **rule)
{
    ch_strategy  *st = arg;
    const ch_var *v;
    ch_status     rc = CH_OK;

    *rule = NULL;
    *source = CH_LAYOUT_VARIABLE;
    ch__layout_replicated(st->n_cores, r->shape.rank, out);
    if (r->is_borrowed)
        return CH_OK;
    pthread_mutex_lock(&st->lock);
    v = ch__map_find_name(&st->vars, r->name);
    if (v != NULL && v->strategy != NULL && v->shape.rank == r->shape.rank) {
        *out = *v->tiles;
        *rule = v->rule;
        *source = v->rule != NULL ? CH_LAYOUT_RULE
                  : v->is_found   ? CH_LAYOUT_SEARCH
                                  : CH_LAYOUT_VARIABLE;
    } else {
        rc = ch__fail(CH_NOT_FOUND, "variable %s: %s has no variable of this name and rank",
                      r->name, st->label);
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}

ch_status ch__cores_partition(void *owner, const ch_run *run, ch_graph *const *variant,
                              ch_graph **core, void **report)
{
    ch_strategy      *st = owner;
    ch_step_report   *own = NULL;
    ch_spmd_options   opt = {.n_cores = st->n_cores,
                             .n_mesh = st->parts.n_mesh,
                             .mesh = st->parts.mesh,
                             .variable = variable_layout,
                             .arg = st,
                             .input_axis = st->parts.split_rows ? 1 : 0,
                             .defaults_to_core_0 = st->parts.defaults_to_device_0,
                             .regathers = st->parts.reshard_after_forward,
                             .bytes_per_operation = st->bytes_per_operation};
    ch_search_report *search = NULL;
    ch_status         rc = CH_OK;

    if (st->parts.choose_layouts)
        rc = ch__find_layouts(st, run, variant, &opt, &search);
    if (rc == CH_OK)
        rc = ch__spmd_divide(&opt, run->n_local, variant, core, &own);
    if (own != NULL)
        own->search = search;
    else
        ch__search_report_free(search);
    *report = own;
    return rc;
}
