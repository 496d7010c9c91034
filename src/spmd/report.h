/* spmd/report.h -- reports of divided steps: plain data about the calls and values of a step.
 *
 * actions.c describes the step of replica 0 while it divides it (describe.c). The report
 * lives as long as the prepared graph (ch_run_ops.partition), so it refers to nothing of the
 * division: its texts are copied, or are constants of the library. report.c makes a
 * ch_layout_report of it, print.c prints it.
 *
 * All of a report is in its arena.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_REPORT_H
#define SPMD_REPORT_H

#include "base/mem.h"
#include "cohort/logical.h"
#include "graph/op.h"

struct ch_prepared;

/* Where the layout of a value comes from. */
typedef enum ch_layout_source {
    CH_LAYOUT_DEFAULT,       /* nothing splits the value */
    CH_LAYOUT_ANNOTATION,    /* of the value, or of a later call that only reads it */
    CH_LAYOUT_CHOSEN_DEVICE, /* ch_logical_device_enter */
    CH_LAYOUT_INPUT,         /* the strategy splits all inputs (ch_strategy_parts.split_rows) */
    CH_LAYOUT_VARIABLE,
    CH_LAYOUT_RULE,      /* of a variable, by a split rule (ch_split_rule) */
    CH_LAYOUT_SEARCH,    /* of a variable, by the search (search.c) */
    CH_LAYOUT_NEIGHBOUR, /* taken from another value through a call */
    CH_LAYOUT_CHEAPEST,  /* no neighbour has it, but it has the least cost (choose.c) */
    CH_LAYOUT_UNDIVIDED, /* the op has no partition rule */
    CH_LAYOUT_PARTIAL    /* the call adds up a split axis, or keeps a sum of this kind */
} ch_layout_source;

/* A call. */
typedef struct ch_report_call {
    const char *op;     /* name of the op, or "annotation" */
    const char *name;   /* of the input, the variable or the host function; NULL: none */
    const char *scope;  /* NULL: none */
    const void *caller; /* address in the user's code; NULL: unknown */
} ch_report_call;

typedef struct ch_report_layout {
    const char      *text; /* such as "{4, 1}" (ch__core_layout_print) */
    ch_layout_source source;
    /* of the variable or rule; the reason of CH_LAYOUT_UNDIVIDED; may be NULL */
    const char    *name;
    int            from;   /* CH_LAYOUT_NEIGHBOUR: number of the value */
    ch_report_call at;     /* the annotation, or the call through which the layout came */
    bool           is_own; /* that call computes the value */
    /* where value `from` is, if not in the same graph: around this body, or in one of `at` */
    bool is_outside, is_in_body;
} ch_report_layout;

/* What a transfer is for. */
typedef enum ch_report_use {
    CH_FOR_CALL,
    CH_FOR_VARIABLE, /* the new value of a variable */
    CH_FOR_RESULT    /* an output of the step */
} ch_report_use;

/* A transfer of a value to the devices that need it. */
typedef struct ch_report_move {
    ch_traffic_kind kind;
    int64_t         bytes; /* of one run of the body */
    ch_report_use   use;
    const char     *name; /* of the variable or output; NULL: none */
    int id; /* of the first result of the call, or -1 if it has none; index of the output */
    ch_report_call         call;     /* CH_FOR_CALL */
    ch_report_layout       is;       /* of that result, or of the variable or output */
    bool                   is_asked; /* an annotation asks for it */
    struct ch_report_move *next;
} ch_report_move;

/* A value, or a call without results. */
typedef struct ch_report_value {
    int                     id; /* -1: a call without results */
    ch_report_call          call;
    ch_dtype                dtype;
    ch_shape                shape, each; /* whole; the largest part of a device */
    bool                    is_whole;    /* every device that has it, has all of it */
    bool                    is_even;     /* all parts have the size `each` */
    bool                    is_host;     /* an input or a constant: devices take their parts */
    bool                    is_repeated; /* computed whole by all, although an input is split */
    ch_report_layout        layout;
    ch_report_move         *move; /* list in the order of execution */
    struct ch_report_body  *body; /* bodies of the call; NULL: none */
    struct ch_report_value *next;
} ch_report_value;

/* The values of a step, or of a body of a call, in the order of execution. */
typedef struct ch_report_body {
    const char            *name;  /* of the step, or of the attribute of the call */
    int64_t                times; /* how often the body runs; -1: only a run knows */
    ch_report_value       *first, **last;
    ch_report_value      **by_id;
    struct ch_report_body *next; /* the next body of the call */
} ch_report_body;

/* A class of variables whose layout the search has found. */
typedef struct ch_found_class {
    const char *name, *layout; /* of the first variable */
    ch_dtype    dtype;
    ch_shape    shape;
    int         n_vars; /* without slots */
} ch_found_class;

/* The result of a search (search.c). Its starting points: variables whole, along their first
 * axis, along their last axis; each with inputs whole, and with inputs along axis 0. */
enum { CH_SEARCH_STARTS = 6 };
typedef struct ch_search_report {
    ch_arena arena;
    int      n_plans;                           /* plans that were evaluated */
    double   cost, bytes, operations, barriers; /* of the chosen plan */
    int64_t  needs; /* its memory on the core with most, estimated; 0: no limit */
    int      n_classes;
    ch_found_class *class;
    int    input_axis; /* 0: inputs are not split; 1 plus the axis; -1: not chosen */
    double start_cost[CH_SEARCH_STARTS];
    bool   start_fits[CH_SEARCH_STARTS]; /* the memory of the devices */
} ch_search_report;

typedef struct ch_step_report {
    ch_arena          arena;
    ch_search_report *search;                /* owned; NULL: layouts were not searched */
    int               n_calls, n_replicated; /* as in ch_layout_report */
    /* arithmetic operations of each core, and of the step on a single device */
    double operations[CH_LOGICAL_DEVICES_MAX], all_operations;
    /* how often the calls run that are being added: calls in bodies run several times */
    double         times;
    ch_report_body step;
} ch_step_report;

ch_status ch__step_report_new(ch_step_report **out);
/* Frees a ch_step_report; `report` may be NULL. */
void ch__step_report_free(void *report);
/* Frees the report of a search; NULL: does nothing. */
void ch__search_report_free(ch_search_report *r);

/* Returns the report of a prepared graph; NULL: the step was not divided. (report.c) */
const ch_step_report *ch__step_report_of(const struct ch_prepared *p);
/* Sets *r to the plan of a prepared graph. (report.c) */
void ch__report_planned(const struct ch_prepared *p, ch_layout_report *r);
/* Logs the calls that were computed whole although an input was split, and the transfers of
 * more than COHORT_RESHARD_NOTICE bytes that no annotation asked for. (print.c) */
void ch__step_report_log(const ch_step_report *r);

#endif
