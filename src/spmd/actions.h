/* spmd/actions.h -- private header: the actions of the cores of a replica.
 *
 * A step is divided into a list of actions: take a part of an input, reshard a value, compute a
 * call, put a part of a result. actions.c makes the list from the decisions of a division, and
 * finds the classes of cores. partition.c writes a graph for each class. A body of a call has a
 * list of its own, with the classes of the list around it.
 *
 * Invariants:
 *   1. The list is the same for all cores of a replica, so their collectives match, and the
 *      calls in it are the same for all replicas. Reshards are not: they depend on sizes, and
 *      no replica waits for another in a reshard.
 *   2. A core that has nothing to add to a result has no partial result (ch__lower).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_ACTIONS_H
#define SPMD_ACTIONS_H

#include "spmd/divide.h"

typedef enum ch_action_kind {
    CH_ACTION_TAKE,    /* cores take their parts of an input or constant */
    CH_ACTION_RESHARD, /* cores get other parts of a value */
    CH_ACTION_CALL,    /* cores compute their parts of a call */
    CH_ACTION_PUT      /* cores write their parts of a result */
} ch_action_kind;

typedef struct ch_partition ch_partition;

/* A transfer, for the report. */
typedef struct ch_planned_move {
    const ch_node *value;
    ch_report_use  use;
    const ch_node *call;  /* CH_FOR_CALL */
    int            index; /* otherwise: of the resource, or of the output */
    /* the layout of the new value, or of the output */
    const ch_core_layout *layout;
    ch_traffic_kind       kind;
    int64_t               bytes;
} ch_planned_move;

/* What the cores do in a call. Arrays are by input, output or core. */
typedef struct ch_core_call {
    ch_factors              rule;
    const ch_form         **in;              /* form of each input */
    ch_form               **out;             /* form of each output */
    const ch_core_regions **in_at, **out_at; /* regions of each input and output */
    unsigned                stays_partial;   /* as in ch_call_plan */
    uint64_t                computes;        /* bit c: core c computes its part */
    /* Every core has a part that is not empty, and its attributes follow from the sizes of its
     * outputs: partition.c makes them (ch__part_attrs). */
    bool            is_full;
    void          **attrs;   /* by core: attributes of the part; NULL: those of the call */
    ch_origins     *origins; /* positions of the parts; NULL: the kernel does not need them */
    int             n_bodies;
    ch_partition   *body;      /* by body; NULL: none */
    ch_report_body *described; /* by body: its part of the report; NULL: no report */
} ch_core_call;

typedef struct ch_action {
    ch_action_kind kind;
    const ch_node *value;        /* the call, the result, or the value that cores take or get */
    int            index;        /* PUT: of the output */
    const ch_form *source;       /* RESHARD, PUT: the form that the cores have */
    ch_form       *made;         /* TAKE, RESHARD: the form that they get */
    const ch_core_regions *want; /* all but CALL: the regions that the cores get or put */
    ch_core_call          *call; /* CALL */
    const struct ch_exchange_table *table; /* RESHARD: NULL until the first graph is written */
    ch_planned_move                 move;  /* all but CALL: for the report */
    struct ch_action               *next;
} ch_action;

/* A class of cores with the same actions, and their graph. */
typedef struct ch_core_class {
    int       first; /* the lowest core of the class */
    uint64_t  cores; /* bit c: core c is in the class */
    ch_graph *g;     /* referenced */
} ch_core_class;

/* The actions of the cores for a graph: of a replica, or of a body. */
struct ch_partition {
    ch_core_division *d;
    ch_graph         *g;
    ch_forms          forms;
    ch_step_report   *report;    /* NULL: none */
    ch_report_body   *described; /* the part of the report for this graph */
    ch_planned_move   move;      /* the use of the transfers that are being added */
    ch_action        *first, **last;
    int               n_classes, class_of[CH_MAX_CORES];
    ch_core_class class[CH_MAX_CORES];
    /* by resource and by output: forms of new values of variables, and of results of a body */
    const ch_form   **written, **result;
    ch_core_regions   room;   /* for regions that are no layout */
    ch_shared_memory *shared; /* of the graphs of all classes and of their bodies */
};

/* Lists the actions for a graph that is divided as d says, with those of its bodies.
 * `described` is the part of the report for the graph; both are NULL if there is no report. The
 * memory is that of the division. */
ch_status ch__actions_list(ch_partition *p, ch_core_division *d, ch_graph *g,
                           ch_step_report *report, ch_report_body *described);
/* Finds the classes of cores, and numbers them by their first cores. */
ch_status ch__actions_classes(ch_partition *p);
/* Returns true if parts of a call have attributes of their own. */
bool ch__has_part_attrs(const ch_node *call);
/* Sets `attrs` to the attributes of the part of such a call that core c computes, whose ranges
 * of the factors are from[i] to to[i]. */
ch_status ch__part_attrs(ch_partition *p, const ch_node *call, const ch_core_call *of, int c,
                         const int64_t *from, const int64_t *to, void *attrs);

/* ---- describe.c: the report ---- */

/* Prepares a body for values with ids below n. `name` is copied. */
ch_status ch__describe_begin(ch_step_report *r, ch_report_body *b, const char *name, int n);
/* Sets *out to a prepared list of the bodies of a call. */
ch_status ch__describe_bodies(ch_step_report *r, const ch_node *call, ch_report_body **out);
/* Describes the values of a call, after it has forms, and counts the call. plan and `of` are
 * NULL for a value that no op computes. */
ch_status ch__describe_call(ch_partition *p, const ch_call_plan *plan, const ch_node *call,
                            const ch_core_call *of);
/* Describes a transfer of a value that has been described. */
ch_status ch__describe_move(ch_partition *p, const ch_planned_move *m);

#endif
