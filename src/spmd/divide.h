/* spmd/divide.h -- private header of the partitioner: the decisions about a graph.
 *
 * A division is made in four passes over a specialised graph:
 *   1. propagate.c gives every value a wanted layout. Annotations and variables fix layouts,
 *      and the other values take theirs from their neighbours.
 *   2. expand.c replaces calls whose kernels need a split axis whole by plain ops. If there are
 *      such calls, pass 1 is repeated on the new graph.
 *   3. choose.c chooses for every call the ranges of its factors that each core computes. The
 *      ranges are a ch_core_layout with a factor in place of each axis (ranges.c). sums.c
 *      estimates before which partial sums should wait for an addition.
 *   4. actions.c lists the actions of the cores, and partition.c writes their graphs.
 * A call with bodies has a division of each body, which the passes visit with it (body.c).
 * forms.c keeps track of the forms in which a value is on the cores, for passes 3 and 4.
 * Passes 1 and 3 see the graph of one replica, and pass 2 changes the graphs of all replicas
 * alike; replica.c fits the decisions to another replica.
 *
 * All of a division is in its arenas, except the graph. search.c makes many divisions of a
 * graph: ch__division_reset keeps its calls and rules, and forgets all decisions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_DIVIDE_H
#define SPMD_DIVIDE_H

#include "graph/graph.h"
#include "spmd/reshard.h"
#include "spmd/spmd.h"

/* The wanted layout of a value. */
typedef struct ch_value_plan {
    const ch_core_layout *want; /* NULL while propagating: undecided */
    bool                  is_fixed;
    ch_layout_source      source;         /* for reports */
    const ch_node        *from, *through; /* CH_LAYOUT_NEIGHBOUR: the value and the call */
    const char           *rule;           /* CH_LAYOUT_RULE: its name */
    int changed; /* the number of its last change (ch_core_division.n_changes); 0: undecided */
    /* Set by sums.c: */
    bool   is_sum; /* a call probably computes a partial sum */
    double due;    /* bytes of the reductions that follow if the value stays a partial sum;
                    * INFINITY: a call needs the complete value */
} ch_value_plan;

typedef struct ch_body_plan ch_body_plan;

/* The decisions about a call. */
typedef struct ch_call_plan {
    const ch_node *call;      /* in ch_core_division.g */
    ch_factors     rule;      /* n_set_out is 0 if the call must not be divided */
    const int     *in_order;  /* the numbers of the inputs, those of most bytes first */
    const int     *out_order; /* likewise */
    /* Numbers of changes when layouts last spread to the inputs, and to the outputs. */
    int                   n_seen[2];
    const ch_core_layout *ranges; /* NULL before choose.c: the ranges of the factors */
    unsigned stays_partial; /* bit i: input i is used in the partial form that was computed */
    /* Of a pack (ch__is_pack), in place of `ranges`: by array, its layout. Every core has a
     * part of each array, and no array is partial. */
    const ch_core_layout **array;
    ch_body_plan          *bodies; /* of a call with bodies, in place of `ranges`; else NULL */
} ch_call_plan;

/* What a division costs: added up by choose.c while it makes the division (cost.c). */
typedef struct ch_division_cost {
    /* Of a run: bytes that the cores of a replica get from each other and from other replicas,
     * arithmetic operations of all cores, barriers of exchanges. */
    double bytes, operations, barriers;
    double times;      /* how often the graph that is visited runs */
    int    n_replicas; /* that a collective between replicas connects */
    bool   has_peaks;  /* `peak` of all divisions is wanted */
} ch_division_cost;

struct ch_core_division {
    const ch_spmd_options *opt;
    ch_layout_table       *layouts; /* owned by the division of the step */
    ch_arena               base;    /* what depends on the graph only: calls and rules */
    ch_arena               arena;   /* all else */
    ch_graph              *g;       /* referenced */
    ch_division_cost      *cost;    /* NULL: not wanted */
    int64_t               *peak;    /* by core: bytes of values at the same time; NULL */
    int                    n_calls;
    ch_call_plan          *call;      /* in the order of the graph */
    ch_value_plan         *value;     /* by id */
    int                    n_changes; /* of wanted layouts */
    const ch_core_layout **tiles;     /* by resource: how the cores store the variable */
    /* Of a body: the layouts of its inputs and outputs. NULL for a step: the inputs of a step
     * are on the host, and so are its results. */
    const ch_core_layout **input, **output;
};
typedef struct ch_core_division ch_core_division;

/* The decisions about the bodies of a call. */
struct ch_body_plan {
    int              n;
    ch_core_division body[CH_MAX_BODIES];
    ch_body_ties     ties;
    /* Set by choose.c: the layouts of the inputs and outputs of the call. */
    const ch_core_layout **in, **out;
};

/* Lists the calls of graph g and their rules, and those of bodies. d->opt and d->layouts must
 * be set. Also after an error, the caller must call ch__division_end, which leaves the table of
 * layouts alone. */
ch_status ch__division_begin(ch_core_division *d, ch_graph *g);
void      ch__division_end(ch_core_division *d);
/* Forgets all decisions, so that the passes can be made again. */
void ch__division_reset(ch_core_division *d);

/* Returns the unique layout of a value that is whole on every core. NULL: out of memory. */
const ch_core_layout *ch__division_replicated(ch_core_division *d, int rank);
/* Returns the unique layout of a value whose layout nothing decides. NULL: out of memory. */
const ch_core_layout *ch__division_default(ch_core_division *d, int rank);

/* ---- ranges.c: layouts of values as ranges of factors, and back ---- */

/* Returns the number of outputs that have a factor. */
int ch__outputs_with(const ch_factors *f, int factor);

/* Which factors a lift uses. */
typedef enum ch_lift {
    CH_LIFT_ALL,   /* every factor that may be divided */
    CH_LIFT_RESULT /* only factors of outputs: a factor that is summed over decides nothing */
} ch_lift;

/* Sets *out to the ranges of factors that give an array with these axes the layout `l`.
 * Partial results are left out, except those of a sum if `keep_partial`: a linear call keeps
 * sums, and no maximum or product. Returns false if no ranges do. */
bool ch__lift(const ch_factors *f, const ch_axis_rule *axis, const ch_core_layout *l,
              ch_lift which, bool keep_partial, ch_core_layout *out);
/* Sets *out to the layout of an array with these axes and sizes if the cores compute `ranges`.
 * A factor that is divided and is not one of the axes makes copies if `in` is true (the array
 * is an input), and otherwise partial results, of the cores whose range has positions. Returns
 * false if the array has no layout. */
bool ch__lower(const ch_factors *f, const ch_core_layout *ranges, const ch_axis_rule *axis,
               const ch_dims *d, bool in, ch_core_layout *out);
/* Returns true if input i of a call lies as `has`: as the cores need it to compute `ranges`,
 * with the partial results of the ranges. */
bool ch__has_partial(ch_core_division *d, const ch_node *call, const ch_factors *f,
                     const ch_core_layout *ranges, int i, const ch_core_layout *has);
/* Sets from[i] and to[i] to the range of factor i that a core computes. Returns false if the
 * core computes nothing: it has no ranges, or an empty range of a reduced factor, or of a
 * factor of all outputs. */
bool ch__core_ranges(const ch_factors *f, const ch_core_layout *ranges, int core, int64_t *from,
                     int64_t *to);
/* The ranges of all factors, and the cores that compute something. */
typedef struct ch_range_table {
    const ch_core_layout *ranges;
    uint64_t              cores; /* ch__core_ranges */
    /* by factor: range i is [begin[i], begin[i + 1]) */
    int64_t begin[CH_MAX_FACTORS][CH_MAX_CORES + 1];
} ch_range_table;

/* Sets *out to the ranges of a call. */
void ch__range_table_set(const ch_factors *f, const ch_core_layout *ranges,
                         ch_range_table *out);
/* Sets from[i] and to[i] as ch__core_ranges does, for a core that computes something. */
void ch__range_table_core(const ch_range_table *t, int core, int64_t *from, int64_t *to);
/* Returns the number of arithmetic operations of a part of a call. */
double ch__operations(const ch_factors *f, const int64_t *from, const int64_t *to);

/* Returns the number of arithmetic operations of a call on all cores together. */
double ch__all_operations(const ch_factors *f, const ch_core_layout *ranges);

/* Returns true if no core of the ranges has an empty range of a divided factor. */
bool ch__ranges_are_full(const ch_factors *f, const ch_core_layout *ranges);
/* Returns the regions of input `i` of a call that the cores need: those of a layout, or `room`,
 * which it fills in. NULL: the ranges need positions that are no region, or memory is
 * exhausted. */
const ch_core_regions *ch__input_regions(ch_core_division *d, const ch_node *call,
                                         const ch_factors *f, const ch_core_layout *ranges,
                                         int i, ch_core_regions *room);

/* ---- forms.c: the forms of values on the cores ---- */

/* A form of a value: the regions of it that the cores have in memory. */
typedef struct ch_form {
    const ch_core_layout  *layout;  /* NULL: the regions are no layout */
    const ch_core_regions *regions; /* NULL: those of the layout */
    bool is_host; /* an input or a constant: cores can take any region of it */
    /* It was made by a reshard for the backward pass, or for other calls. */
    bool is_made, is_for_backward;
    /* The value is being reduced: only the end of the reduction may use it. */
    bool is_in_flight;
    /* The calls that made it and that use it last, as indices of ch_core_division.call; the
     * last call may overwrite it; it is a view of another form. For ch__division_cost. */
    int             made, used;
    int             n_uses;
    bool            is_overwritten;
    struct ch_form *reduces; /* the partial form that it was made from; NULL */
    struct ch_form *view_of;
    /* by class of cores: the value in the graph of the class, or NULL (partition.c) */
    ch_node       **node;
    struct ch_form *next;
} ch_form;

/* By value id, of one graph: a list of forms. The first form is the one that was computed. */
typedef struct ch_forms {
    ch_arena        *arena;
    ch_layout_table *layouts;
    int              n_cores;
    ch_form        **first;
    /* by value id: the value is computed from variables alone, and its resharded forms are used
     * in the pass only for which they were made; NULL: forms are used everywhere */
    const bool *regathered;
    bool        in_backward; /* the call that is visited belongs to the backward pass */
    const ch_core_division *d;
    int                     now; /* index of the call that is visited */
} ch_forms;

/* Prepares the forms of the values of a graph. */
ch_status ch__forms_begin(ch_core_division *d, const ch_graph *g, ch_forms *out);
/* Sets the call that is visited. */
static inline void ch__forms_visit(ch_forms *forms, const ch_node *call)
{
    forms->in_backward = call->work == CH_WORK_BACKWARD;
}

/* Returns the form from which a call gets the regions `want` of value n, and sets *moved to the
 * elements that cores must read from each other. *moved is -1 if the form has the regions
 * already. */
ch_form *ch__form_for(const ch_forms *forms, const ch_node *n, const ch_core_regions *want,
                      int64_t *moved);
/* Returns what cores must read from each other to get the regions `want` of value n from layout
 * `from`. */
ch_reshard_cost ch__forms_cost(const ch_forms *forms, const ch_core_layout *from,
                               const ch_node *n, const ch_core_regions *want);
/* Returns the layout in which value n was computed; NULL: every core can take any part. */
const ch_core_layout *ch__computed_layout(const ch_forms *forms, const ch_node *n);
/* Adds a form with a layout or, if that is NULL, with regions. NULL: out of memory. */
ch_form *ch__form_add(ch_forms *forms, const ch_node *n, const ch_core_layout *layout,
                      const ch_core_regions *regions);

/* A call that is repeated to make another form of its result: a reshape, which moves nothing
 * and costs little. */
typedef struct ch_repeat {
    ch_factors             rule;
    ch_core_layout         ranges;
    const ch_core_regions *in;    /* regions of its input */
    int64_t                moved; /* elements that move to get them; -1: a form has them */
} ch_repeat;

/* Returns true if the call that computes value n should be repeated to get the regions `want`
 * of it: then fewer than `moved` elements move, because a form of its input is where they are
 * needed. */
bool ch__repeats(const ch_forms *forms, const ch_node *n, const ch_core_regions *want,
                 int64_t moved, ch_repeat *out);
/* Returns the elements that ch__form_get would move for the regions `want` of value n, or less
 * than 0. */
int64_t ch__form_moved(const ch_forms *forms, const ch_node *n, const ch_core_regions *want);
/* Makes sure that value n has a form with the regions `want`; their layout is `l`, or NULL.
 * `out` may be NULL. */
ch_status ch__form_get(ch_forms *forms, const ch_node *n, const ch_core_regions *want,
                       const ch_core_layout *l, ch_form **out);
/* Makes sure that value n has a form of layout `l`. */
ch_status ch__form_need(ch_forms *forms, const ch_node *n, const ch_core_layout *l);

/* ---- cost.c: the cost of a division; nothing is counted if d->cost is NULL ---- */

/* Counts a reshard of value n from a form, in which elements move, to the regions `want`. */
void ch__cost_reshard(const ch_forms *forms, const ch_form *from, const ch_node *n,
                      const ch_core_regions *want);
/* Counts the operations of a call, and the bytes of a pack between replicas. */
void ch__cost_call(const ch_forms *forms, const ch_call_plan *p);
/* Notes that the call that is visited uses a form. */
void ch__cost_use(const ch_forms *forms, ch_form *form);
/* Sets d->peak, after all calls and results have their forms. */
ch_status ch__cost_peak(ch_core_division *d, const ch_forms *forms);

/* Returns the layout in which the cores get input i of a call, with the regions `at`
 * (ch__input_regions). A form with a layout can become the source of further reshards. NULL:
 * the regions are no layout, or memory is exhausted. */
const ch_core_layout *ch__input_layout(ch_core_division *d, const ch_node *call,
                                       const ch_factors *f, const ch_core_layout *ranges, int i,
                                       const ch_core_regions *at);

/* Returns true for a call whose output i is computed from input i alone and lies like it, such
 * as an all-reduce of several gradients. The arrays may be split in ways that no ranges of
 * factors describe together, so each has a layout of its own. */
bool ch__is_pack(const ch_node *call);

/* Returns true for a value that no op computes: an input, a constant, or a variable. */
bool ch__is_source(const ch_node *call);

/* ---- sums.c: partial sums that wait for an addition ---- */

/* Returns true if a call may use input i in the form of a partial sum. */
bool ch__may_stay_partial(const ch_node *call, int i);
/* Returns true if input i is in `inputs` (ch_call_plan.stays_partial). */
static inline bool ch__stays_partial(unsigned inputs, int i)
{
    return i < 32 && (inputs >> i & 1) != 0;
}
/* Sets `is_sum` and `due` of all values. */
void ch__find_sums(ch_core_division *d);
/* Returns the bytes that a call adds to those due for its input i: a share of the reduction of
 * its result. INFINITY: the call needs the complete input. */
double ch__sum_share(const ch_core_division *d, const ch_node *call, int i);

/* ---- replica.c: the calls of other replicas ---- */

/* Makes *p, a copy of a plan, the plan of the call of a replica with these forms of its inputs.
 * If the replica is not that of the division, the rule has other sizes, other cores may have
 * partial results, and other ranges may be chosen. Fills in `room`, which p->ranges may be. */
ch_status ch__plan_in_replica(ch_core_division *d, const ch_forms *forms, const ch_node *call,
                              ch_call_plan *p, ch_core_layout *room);

/* ---- propagate.c ---- */

/* The calls through which layouts spread: level by level, more calls take part. The last level
 * is for the layouts of variables if the options split the inputs: then the layouts of the
 * inputs decide first, and those of variables only for values that they leave undecided. */
typedef enum ch_spread_level {
    CH_SPREAD_ELEMENTWISE,
    CH_SPREAD_ALL,
    CH_SPREAD_BROADCAST,
    CH_SPREAD_VARIABLES,
    CH_SPREAD_LEVELS
} ch_spread_level;

/* Returns true if the layout of a value spreads. Where variables are on core 0 by default, the
 * place of a variable does not decide the layouts of the values that are computed from it. */
bool ch__spreads(const ch_core_division *d, const ch_node *n, ch_spread_level at);
/* Spreads layouts through the calls of a graph, in their order or backwards. Sets *changed if a
 * layout has changed. */
ch_status ch__spread(ch_core_division *d, ch_spread_level at, bool forward, bool *changed);
/* Gives value n the layout `l` if it is finer than its own, and sets *changed then. `from` is
 * the value that it comes from, and `through` the call. */
ch_status ch__improve(ch_core_division *d, const ch_node *n, const ch_core_layout *l,
                      const ch_node *from, const ch_node *through, bool *changed);

/* ---- body.c: the passes for the bodies of a call ---- */

/* Returns the layout of a value if it is an input of a body, otherwise NULL. */
const ch_core_layout *ch__body_input_layout(const ch_core_division *d, const ch_node *n);
/* Begins the divisions of the bodies of a call. */
ch_status ch__bodies_begin(ch_core_division *d, ch_call_plan *p);
/* Forgets all decisions about the bodies of a call (ch__division_reset). */
void      ch__bodies_reset(const ch_call_plan *p);
ch_status ch__bodies_spread(ch_core_division *d, const ch_call_plan *p, ch_spread_level at,
                            bool forward, bool *changed);
/* Settles the layouts of the inputs and outputs, adds their forms, and divides the calls of the
 * bodies. */
ch_status ch__bodies_choose(ch_core_division *d, ch_forms *forms, const ch_call_plan *p);

/* ---- the passes ---- */

ch_status ch__propagate(ch_core_division *d);
/* Replaces the calls in the graphs of the replicas that must be expanded, and sets *any if
 * there are such calls: then the division must be made again. */
ch_status ch__expand(const ch_core_division *d, int n, ch_graph **graph, bool *any);
/* Returns a hash of the calls that must be expanded, also in bodies; 0: none. */
uint64_t  ch__expanded_calls(const ch_core_division *d);
ch_status ch__choose(ch_core_division *d);
/* Chooses the ranges of a call with these forms of its inputs. If `keep` and the call can be
 * computed in p->ranges, they stay as they are. */
ch_status ch__choose_again(ch_core_division *d, const ch_forms *forms, ch_call_plan *p,
                           bool keep);
/* Sets core[c] to the graph of core c of a replica whose graph is g, referenced. Fills in the
 * report; NULL: no report. */
ch_status ch__partition(ch_core_division *d, ch_graph *g, ch_graph **core,
                        ch_step_report *report);

#endif
