/* graph/step.h -- recording, for those who start it and for variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_STEP_H
#define GRAPH_STEP_H

#include "graph/graph.h"

#define CH_SCOPE_MAX 512

struct ch_step {
    ch_graph   *graph;
    ch_status   rc; /* the first error */
    char        error[CH_FAULT_TEXT];
    char        scope[CH_SCOPE_MAX]; /* "block/dense"; "" at the top */
    const char *scope_copy;          /* its copy in the graph's arena; NULL: not made yet */
    const void *caller;              /* while a composite op records: the user's address */
    const char *composite;           /* ... and the function that was called: "ch_stack" */
    const char *verb, *object; /* the change of a variable that is being recorded, for messages:
                                         "assign_add" of "w"; NULL: none */
    void       *owner;         /* whoever records: the strategy */
    ch_speaks_of speaks_of;    /* of the outermost */
    ch_work_kind work;         /* what that which is recorded now is for */
    ch_step     *outer;        /* of a body */
    ch_step     *previous;       /* what this thread recorded when this one began */
    ch_step     *active; /* of the outermost: the innermost body being recorded, or itself */
    int          n_captures, cap_captures;
    ch_node    **captured; /* nodes of outer graphs that the body uses ... */
    ch_node    **capture;  /* ... and the body's inputs that stand for them */
};

ch_status ch__step_new(const char *name, ch_step *outer, ch_step **out);
void      ch__step_free(ch_step *s); /* the graph too, unless it was taken */
/* Ends the recording: its graph, or its first error. */
ch_status ch__step_finish(ch_step *s, ch_graph **out);

/* The innermost step that this thread records; NULL: none. */
ch_step *ch__step_recording(void);
/* A new input of the graph being recorded. */
ch_node *ch__step_add_input(ch_step *s, const char *name, ch_dtype dtype, const ch_dims *dims);
/* The same with all attributes; `a->index` is set here. */
ch_node *ch__step_add_input_of(ch_step *s, const char *name, const ch_input_attrs *a);
/* Keeps rc and this thread's message as the step's first error; where it happened comes along.
 */
void ch__step_record_error(ch_step *s, ch_status rc, const void *caller);

/* Whether what the caller gave is there: if `ok` is false, the error sticks that `what` of `op` is
 * NULL. Of a step that is NULL, false. */
bool ch__step_want(ch_step *s, bool ok, const char *op, const char *what, const void *caller);
#if defined(__clang_analyzer__) && !defined(GRAPH_STEP_C)
/* The analyzer does not see that it is false where one of the two is: this tells it. */
#define ch__step_want(s, ok, ...) (ch__step_want(s, ok, __VA_ARGS__) && (s) != NULL && (ok))
#endif

/* Variables. A resource is known by its key; the read is recorded when it is first asked for.
 */
ch_node *ch__step_read(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape);
/* Says that a variable which was read is in another task (ch_resource.is_remote). */
void ch__step_mark_remote(ch_step *s, const void *key);
/* Records the read of a variable that belongs to another owner than the step's. The graph takes over the
 * caller's reference to `key`, which `release` gives up; ch_run_ops.borrow gives its value to each run. */
ch_node *ch__step_borrow(ch_step *s, void *key, void (*release)(void *key), const char *name,
                         ch_dtype dtype, ch_shape shape);
/* From now on, `value` is what the resource holds. Returns it. */
ch_node *ch__step_write(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape,
                        ch_node *value);

/* True for a node that can be used in what s records: its own, or one of an outer graph. */
bool ch__step_can_use(const ch_step *s, const ch_node *n);
/* What a node of an outer graph is in the body being recorded in s; itself if it is s's. */
ch_node *ch__step_capture(ch_step *s, ch_node *n);

/* A composite op (one that records several) calls this first, so that errors name it and its
 * caller's line and not its own; returns what to give to ch__step_end. */
const void *ch__step_begin_at(ch_step *s, const void *caller, const char *name);
#define ch__step_begin(s) ch__step_begin_at(s, __builtin_return_address(0), __func__)
void ch__step_end(ch_step *s, const void *before);

/* Around a call of the user's function by a composite op: its errors name its own lines. */
typedef struct ch_site {
    const void *caller;
    const char *composite;
} ch_site;
ch_site ch__step_hand_over(ch_step *s);
void    ch__step_clear_error(ch_step *s, ch_site site);

/* A body: a graph of its own whose inputs are `n` values like the given nodes', and what it
 * uses of the outer graphs, as captures after them. `record` gets the body's inputs and sets
 * its outputs. On success *captures is in the outer graph's arena. */
typedef void (*ch_body_fn)(ch_step *s, int n, ch_node *const *in, void *arg);
ch_graph *ch__step_body(ch_step *outer, const char *name, int n, const ch_dtype *dtype,
                        const ch_dims *dims, ch_body_fn record, void *arg, int *n_captures,
                        ch_node ***captures);

/* What ch_step_out is for a step: the next result of the body. */
void ch__body_out(ch_step *s, ch_node *n);

/* Records copies of a body's calls in s, with `in` for its inputs; `out` gets its outputs.
 * Random calls keep their ordinals, so that the copies draw the same numbers. False: an error
 * sticks. */
bool ch__step_inline(ch_step *s, const ch_graph *body, ch_node *const *in, ch_node **out);

#endif
