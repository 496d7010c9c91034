/* spmd/search.h -- finds layouts for the variables and inputs of a step.
 *
 * strategy/found_layouts.c calls ch__search before the first run of a function, if the program
 * wants layouts to be chosen (ch_strategy_parts.choose_layouts).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_SEARCH_H
#define SPMD_SEARCH_H

#include "spmd/spmd.h"

/* What the search may do with a variable of the step. */
typedef struct ch_search_var {
    bool is_free; /* it may choose its layout; false: the options give it */
    /* The variable that it follows, along axes of equal sizes, such as that of a slot; its own
     * number: none. Both must be free. */
    int leader;
} ch_search_var;

typedef struct ch_search_problem {
    const char            *step;          /* begins messages */
    const ch_spmd_options *opt;           /* input_axis: ignored if the search chooses it */
    const ch_search_var   *var;           /* by resource of the graph */
    bool                   splits_inputs; /* the search chooses the layout of the inputs */
    int                    n_replicas;
    /* by core: the bytes of memory for the variables and values of the step; INT64_MAX: not
     * limited */
    int64_t memory[CH_MAX_CORES];
} ch_search_problem;

/* The bytes that a plan needs on a core, and those that the core has for them. */
typedef struct ch_search_needs {
    int     core;
    int64_t variables, slots, values, memory; /* slots: variables that follow others */
} ch_search_needs;

typedef struct ch_search_result {
    ch_core_layout   *tiles;      /* by resource; those of borrowed variables are replicated */
    int               input_axis; /* as in ch_spmd_options */
    bool              fits;       /* false: no plan fits; this one exceeds the memory least */
    ch_search_needs   needs;      /* of the core that needs most, estimated */
    ch_search_report *report;
} ch_search_result;

/* Sets *out to the best plan for graph g, which the caller must drop with ch__search_drop. */
ch_status ch__search(const ch_search_problem *p, ch_graph *g, ch_search_result *out);
void      ch__search_drop(ch_search_result *r);
/* Returns RESOURCE_EXHAUSTED: no plan fits the memory, and the best of n_plans has these
 * needs. */
ch_status ch__search_fail(int n_plans, const ch_search_needs *needs);

/* Returns true if two variables are in a class: their shapes are equal, and their names differ
 * only in numbers, such as "dense/kernel" and "dense_1/kernel". */
bool ch__same_class(const char *name, ch_shape shape, const char *other, ch_shape other_shape);

/* Sets *out to the layout `l` of a variable of shape `of`, for one of shape `s` that follows
 * it: along the axes in which the sizes are equal. */
void ch__layout_beside(ch_shape s, const ch_core_layout *l, ch_shape of, ch_core_layout *out);

#endif
