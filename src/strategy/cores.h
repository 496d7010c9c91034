/* strategy/cores.h -- private header: how a strategy divides the steps of its replicas.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_CORES_H
#define STRATEGY_CORES_H

#include "graph/function.h"
#include "spmd/search.h"
#include "strategy/strategy.h"

/* Finds layouts for the open variables of a step, moves the variables, and sets
 * opt->input_axis. variant[r] is the specialised graph of local replica r. Sets *report to the
 * report of the search, owned by the caller, if one was needed. RESOURCE_EXHAUSTED: no layouts
 * fit the memory of the devices; the variables stay open. (found_layouts.c) */
ch_status ch__find_layouts(ch_strategy *st, const ch_run *run, ch_graph *const *variant,
                           ch_spmd_options *opt, ch_search_report **report);

#endif
