/* graph/step.h -- recording of steps and bodies: the interface for strategies, variables and
 * composite ops.
 *
 * A ch_step is a recording: the graph under construction, the first error, and the current
 * scope. A body (of a cond, while or scan) is recorded as a ch_step of its own, inside the step
 * that contains it. A step is used by a single thread. The public functions are in
 * cohort/step.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_STEP_H
#define GRAPH_STEP_H

#include "graph/graph.h"

#define CH_SCOPE_MAX   512
#define CH_SCOPE_DEPTH 256

/* A recording. The members `context` and `active` are used in the outermost step only. */
struct ch_step {
    ch_graph *graph;
    ch_status rc; /* first error; CH_OK: none. After an error nothing more is recorded */
    char      error[CH_FAULT_TEXT];
    char      scope[CH_SCOPE_MAX]; /* scope path, such as "block/dense"; "": no scope */
    int       scope_depth;         /* number of scopes that were entered and not left */
    /* length of `scope` before each of them; deeper scopes do not change `scope` */
    short       scope_begin[CH_SCOPE_DEPTH];
    const char *scope_copy; /* copy of `scope` in the arena of the graph; NULL: not made yet */
    /* address in the user's code while a composite op records; NULL: none */
    const void *caller;
    const char *composite; /* name of that composite op, such as "ch_stack"; NULL: none */
    /* The change of a variable that is being recorded, for messages: verb "assign_add", object
     * "w". NULL: none. */
    const char     *verb, *object;
    void           *owner;   /* the strategy that records */
    ch_step_context context; /* context of the code that is being recorded */
    bool is_discarded;       /* the graph is never run: the recording only creates variables */
    ch_work_kind work;       /* kind of work of new calls */
    int          chosen_device; /* of new calls (ch_node.chosen_device) */
    ch_step     *outer;         /* of a body: the step that contains it; else NULL */
    /* the step that this thread was recording when this step began; NULL: none */
    ch_step  *previous;
    ch_step  *active; /* the innermost body that is being recorded; the step itself if none */
    int       n_captures, cap_captures;
    ch_node **captured; /* nodes of outer graphs that the body uses */
    ch_node **capture;  /* the inputs of the body that represent them */
};

/* Begins a recording on this thread; `outer` is NULL unless it is a body. The caller must free
 * it. */
ch_status ch__step_new(const char *name, ch_step *outer, ch_step **out);
/* Frees the step, and its graph unless ch__step_finish returned it. NULL is fine. */
void ch__step_free(ch_step *s);
/* Ends the recording. Sets *out to the graph, which the caller must unref, or returns the first
 * error. */
ch_status ch__step_finish(ch_step *s, ch_graph **out);

/* Returns the outermost step that this thread is recording; NULL: none. If recordings are
 * nested, the one that began last. */
ch_step *ch__step_recording(void);
/* Returns the outermost step that contains s; s itself if s is not a body. */
static inline ch_step *ch__step_outermost(ch_step *s)
{
    while (s->outer != NULL)
        s = s->outer;
    return s;
}
/* Adds an input to the graph of s. NULL: an error is recorded in s. */
ch_node *ch__step_add_input(ch_step *s, const char *name, ch_dtype dtype, const ch_dims *dims);
/* The same with all attributes; a->index is ignored. */
ch_node *ch__step_add_input_of(ch_step *s, const char *name, const ch_input_attrs *a);
/* Records rc and this thread's message as the error of the step, unless there is an earlier
 * error. Adds the scope and the user's source line. `caller` may be NULL. */
void ch__step_record_error(ch_step *s, ch_status rc, const void *caller);

/* Returns true if `ok` is true and the step has no error. If `ok` is false, records the error
 * that argument `what` of `op` is NULL. Returns false if s is NULL. */
bool ch__step_want(ch_step *s, bool ok, const char *op, const char *what, const void *caller);
#if defined(__clang_analyzer__) && !defined(GRAPH_STEP_C)
/* Tells the analyzer that the result is false if s is NULL or ok is false. */
#define ch__step_want(s, ok, ...) (ch__step_want(s, ok, __VA_ARGS__) && (s) != NULL && (ok))
#endif

/* Returns the current value of a variable, and records its read if there is none. `key`
 * identifies the variable. NULL: an error is recorded in the step. */
ch_node *ch__step_read(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape);
/* Marks a variable that has been read as stored in another task (ch_resource.is_remote). */
void ch__step_mark_remote(ch_step *s, const void *key);
/* Records the read of a variable that belongs to another owner than the step's. The graph takes
 * over the caller's reference to `key`, and gives it up with `release`. Each run gets the value
 * from ch_run_ops.borrow. */
ch_node *ch__step_borrow(ch_step *s, void *key, void (*release)(void *key), const char *name,
                         ch_dtype dtype, ch_shape shape);
/* Makes `value` the current value of the variable. Returns `value`. NULL: an error is recorded
 * in the step. */
ch_node *ch__step_write(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape,
                        ch_node *value);

/* Returns true if a call in s may use n: n belongs to the graph of s or of a step that contains
 * s. */
bool ch__step_can_use(const ch_step *s, const ch_node *n);
/* Returns true if the recording of n's graph has ended, so that no call can use n. */
bool ch__node_has_ended(const ch_node *n);
/* Returns the node for n in the graph of s: n itself, or an input of the body s that represents
 * n. Adds such an input if necessary. NULL: an error is recorded in s. */
ch_node *ch__step_capture(ch_step *s, ch_node *n);

/* Must be called first by a composite op, that is, a function that records several calls.
 * Errors then name the composite op and the source line of its caller. ch__step_end must be
 * called with the returned value. */
const void *ch__step_begin_at(ch_step *s, const void *caller, const char *name);
#define ch__step_begin(s) ch__step_begin_at(s, __builtin_return_address(0), __func__)
void ch__step_end(ch_step *s, const void *before);

/* Encloses a call of the user's function by a composite op, so that errors name the lines of
 * that function. hand_over clears the composite op and returns it; the second function restores
 * it, unless there was an error. */
typedef struct ch_site {
    const void *caller;
    const char *composite;
} ch_site;
ch_site ch__step_save_site(ch_step *s);
void    ch__step_restore_site(ch_step *s, ch_site site);

/* Records a body: a graph with n inputs of the given types, and one further input for each
 * captured node of an outer graph. `record` receives the n inputs and sets the outputs with
 * ch__body_out. Returns the graph, which the caller must unref, and sets *captures to the
 * captured nodes, in the arena of the outer graph. NULL: an error is recorded in `outer`. */
typedef void (*ch_body_fn)(ch_step *s, int n, ch_node *const *in, void *arg);
ch_graph *ch__step_body(ch_step *outer, const char *name, int n, const ch_dtype *dtype,
                        const ch_dims *dims, ch_body_fn record, void *arg, int *n_captures,
                        ch_node ***captures);

/* Adds an output to the body. */
void ch__body_out(ch_step *s, ch_node *n);

/* Records copies of all calls of a body in s. `in` replaces the inputs of the body; `out`
 * receives its outputs. Random calls keep their ordinals, so the copies draw the same numbers.
 * Returns false if an error is recorded in s. */
bool ch__step_inline(ch_step *s, const ch_graph *body, ch_node *const *in, ch_node **out);

#endif
