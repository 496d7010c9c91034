/* graph/step.c -- recordings of steps: begin and end, errors, scopes, inputs, outputs,
 * variables.
 *
 * A ch_step (graph/step.h) is a recording. User code calls the public functions
 * (cohort/step.h); strategies and composite ops call those of graph/step.h. graph/recording.c
 * begins and ends the recording of a function. graph/step_call.c records calls, graph/body.c
 * bodies.
 *
 * Invariants:
 *   1. The first error of a step is kept. After an error every recording function returns NULL
 *      and does nothing, so user code need not check each call.
 *   2. Resources belong to the outermost step; bodies capture their values.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define GRAPH_STEP_C
#include "graph/step.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/where.h"

/* The step of nodes whose recording has ended. No call can be recorded with such nodes. */
static ch_step ended = {.rc = CH_FAILED_PRECONDITION,
                        .error =
                            "the node belongs to a step, branch or loop body that has ended"};

/* The step that this thread is recording, not a body in it. It receives the error of a call
 * without any valid input. */
static _Thread_local ch_step *recording;

ch_step *ch__step_recording(void)
{
    return recording;
}

bool ch__node_has_ended(const ch_node *n)
{
    return n->graph->step == &ended;
}

ch_status ch__step_new(const char *name, ch_step *outer, ch_step **out)
{
    ch_step  *s = ch__calloc(1, sizeof(*s));
    ch_status rc;

    if (s == NULL)
        return ch__fail_memory("recording a step");
    rc = ch__graph_new(name, &s->graph);
    if (rc != CH_OK) {
        ch__free(s);
        return rc;
    }
    s->graph->step = s;
    s->active = s;
    s->outer = outer;
    if (outer != NULL) {
        s->graph->outer = outer->graph;
        s->owner = outer->owner;
        s->caller = outer->caller;
        s->composite = outer->composite;
        s->work = outer->work;
        s->chosen_device = outer->chosen_device;
        memcpy(s->scope, outer->scope, sizeof(s->scope));
        memcpy(s->scope_begin, outer->scope_begin, sizeof(s->scope_begin));
        s->scope_depth = outer->scope_depth;
    } else {
        s->previous = recording;
        recording = s;
    }
    *out = s;
    return CH_OK;
}

void ch__step_free(ch_step *s)
{
    if (s == NULL)
        return;
    if (recording == s)
        recording = s->previous;
    ch_graph_unref(s->graph);
    ch__free(s->captured);
    ch__free(s->capture);
    ch__free(s);
}

ch_status ch__step_finish(ch_step *s, ch_graph **out)
{
    if (s->rc != CH_OK)
        return ch__fail(s->rc, "%s", s->error);
    s->graph->step = &ended;
    s->graph->outer = NULL;
    *out = s->graph;
    s->graph = NULL;
    return CH_OK;
}

/* Returns true if the message begins with the change of a variable that is being recorded, such
 * as "scatter_add of w". The op's name alone is not sufficient: "scatter_add(f32(4), ..." does
 * not name the variable. */
static bool names_change(const ch_step *s, const char *message)
{
    const size_t n = strlen(s->verb);

    return strncmp(message, s->verb, n) == 0 && strncmp(message + n, " of ", 4) == 0;
}

void ch__step_record_error(ch_step *s, ch_status rc, const void *caller)
{
    if (s == NULL || s->rc != CH_OK)
        return;
    if (s->verb != NULL && !names_change(s, ch_error_message()))
        rc = ch__fail_at(rc, "%s of %s", s->verb, s->object);
    s->rc = ch__fail_in(rc, s->composite, s->scope, s->caller != NULL ? s->caller : caller);
    snprintf(s->error, sizeof(s->error), "%s", ch_error_message());
}

bool ch__step_want(ch_step *s, bool ok, const char *op, const char *what, const void *caller)
{
    if (s != NULL && !ok)
        ch__step_record_error(s, ch__fail(CH_INVALID_ARGUMENT, "%s: %s is NULL", op, what),
                              caller);
    return s != NULL && ok && s->rc == CH_OK;
}

ch_status ch_step_status(ch_step *s)
{
    if (s == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "step_status: the step is NULL");
    return s->rc == CH_OK ? CH_OK : ch__fail(s->rc, "%s", s->error);
}

static void fail_as(ch_step *s, ch_status status, const char *format, va_list args,
                    const void *caller)
{
    ch_status rc = status != CH_OK ? status : CH_INVALID_ARGUMENT;

    ch__step_record_error(s, ch__failv(rc, format != NULL ? format : ch_status_text(rc), args),
                          caller);
}

void ch_step_fail_as(ch_step *s, ch_status status, const char *format, ...)
{
    va_list args;

    if (s == NULL)
        return;
    va_start(args, format);
    fail_as(s, status, format, args, __builtin_return_address(0));
    va_end(args);
}

void ch_step_fail(ch_step *s, const char *format, ...)
{
    va_list args;

    if (s == NULL)
        return;
    va_start(args, format);
    fail_as(s, CH_INVALID_ARGUMENT, format, args, __builtin_return_address(0));
    va_end(args);
}

const void *ch__step_begin_at(ch_step *s, const void *caller, const char *name)
{
    const void *before = s->caller;

    if (before == NULL && s->rc == CH_OK) {
        s->caller = caller;
        s->composite = name;
    }
    return before;
}

void ch__step_end(ch_step *s, const void *before)
{
    if (s->rc == CH_OK)
        s->caller = before;
    if (before == NULL && s->rc == CH_OK)
        s->composite = NULL;
}

ch_site ch__step_save_site(ch_step *s)
{
    ch_site site = {s->caller, s->composite};

    s->caller = NULL;
    s->composite = NULL;
    return site;
}

void ch__step_restore_site(ch_step *s, ch_site site)
{
    if (s->rc != CH_OK)
        return;
    s->caller = site.caller;
    s->composite = site.composite;
}

/* ---- scopes ---- */

void ch_step_enter(ch_step *s, const char *scope)
{
    if (s == NULL)
        return;
    if (s->scope_depth < CH_SCOPE_DEPTH) {
        size_t used = strlen(s->scope);

        s->scope_begin[s->scope_depth] = (short)used;
        snprintf(s->scope + used, sizeof(s->scope) - used, "%s%s", used > 0 ? "/" : "",
                 scope != NULL ? scope : "NULL");
        s->scope_copy = NULL;
    }
    s->scope_depth++;
}

void ch_step_leave(ch_step *s)
{
    if (s == NULL || s->scope_depth == 0)
        return;
    if (--s->scope_depth < CH_SCOPE_DEPTH) {
        s->scope[s->scope_begin[s->scope_depth]] = '\0';
        s->scope_copy = NULL;
    }
}

/* ---- inputs, outputs, resources ---- */

ch_node *ch__step_add_input(ch_step *s, const char *name, ch_dtype dtype, const ch_dims *dims)
{
    return ch__step_add_input_of(s, name, &(ch_input_attrs){.dtype = dtype, .dims = *dims});
}

ch_node *ch__step_add_input_of(ch_step *s, const char *name, const ch_input_attrs *attrs)
{
    ch_input_attrs a = *attrs;
    ch_node       *n;

    a.index = s->graph->n_inputs;
    n = ch__source_at(NULL, s, ch__roles.input, &a);

    if (n != NULL)
        n->varies = s->outer == NULL;
    if (n == NULL || name == NULL)
        return n;
    s->graph->input_name[a.index] = ch__arena_strdup(&s->graph->arena, name);
    if (s->graph->input_name[a.index] != NULL)
        return n;
    ch__step_record_error(s, ch__fail_memory("an input"), NULL);
    return NULL;
}

/* Returns the graph of the outermost step. ch_step_in in a body refers to the inputs of the
 * step; the inputs of the body are passed to its function. */
static const ch_graph *graph_of_step(const ch_step *s)
{
    return s->outer != NULL ? ch__step_outermost(s->outer)->graph : s->graph;
}

int ch_step_in_count(const ch_step *s)
{
    return s != NULL ? graph_of_step(s)->n_inputs : 0;
}

ch_node *ch_step_in(ch_step *s, int i)
{
    const ch_graph *g;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    g = graph_of_step(s);
    if (i >= 0 && i < g->n_inputs)
        return g->input[i];
    ch__step_record_error(s,
                          ch__fail(CH_INVALID_ARGUMENT,
                                   "%s: there is no input %d; the number of inputs is %d",
                                   g->name, i, g->n_inputs),
                          __builtin_return_address(0));
    return NULL;
}

ch_node *ch_step_in_named(ch_step *s, const char *name)
{
    const ch_graph *g;

    if (!ch__step_want(s, name != NULL, "step_in_named", "the name",
                       __builtin_return_address(0)))
        return NULL;
    g = graph_of_step(s);
    for (int i = 0; i < g->n_inputs; i++)
        if (g->input_name[i] != NULL && strcmp(g->input_name[i], name) == 0)
            return g->input[i];
    ch__step_record_error(s,
                          ch__fail(CH_INVALID_ARGUMENT,
                                   "%s: none of its %d inputs is named \"%s\"", g->name,
                                   g->n_inputs, name),
                          __builtin_return_address(0));
    return NULL;
}

static ch_status fail_output(const ch_step *s, const char *name, const ch_node *n)
{
    const char *why = "a node of another step";
    char        what[64];

    if (n == NULL)
        why = "NULL; an op returns NULL if an input is NULL";
    else if (ch__node_has_ended(n))
        why = "a node of a branch, loop body or step that has ended";
    snprintf(what, sizeof(what), "%s %d", s->outer != NULL ? "value" : "output",
             s->graph->n_outputs);
    return ch__fail(CH_INVALID_ARGUMENT, "%s: %s%s%s is %s", s->graph->name,
                    name != NULL ? "output \"" : what, name != NULL ? name : "",
                    name != NULL ? "\"" : "", why);
}

static void add_output(ch_step *s, const char *name, ch_node *n, const void *caller)
{
    ch_output *out;
    char      *name_copy = NULL;

    if (s->rc != CH_OK)
        return;
    if (n != NULL && n->graph != s->graph && ch__step_can_use(s, n))
        n = ch__step_capture(s, n);
    if (n == NULL || n->graph != s->graph) {
        ch__step_record_error(s, fail_output(s, name, n), caller);
        return;
    }
    for (int i = 0; name != NULL && i < s->graph->n_outputs; i++)
        if (s->graph->output[i].name != NULL && strcmp(s->graph->output[i].name, name) == 0) {
            ch__step_record_error(s,
                                  ch__fail(CH_INVALID_ARGUMENT,
                                           "%s: two outputs are named \"%s\" (%d and %d)",
                                           s->graph->name, name, i, s->graph->n_outputs),
                                  caller);
            return;
        }
    if ((name != NULL && (name_copy = ch__arena_strdup(&s->graph->arena, name)) == NULL) ||
        (out = ch__graph_add_output(s->graph)) == NULL) {
        ch__step_record_error(s, ch__fail_memory("an output"), NULL);
        return;
    }
    out->name = name_copy;
    out->node = n;
}

void ch_step_out(ch_step *s, const char *name, ch_node *n)
{
    const void *caller = __builtin_return_address(0);

    if (s == NULL)
        return;
    if (s->outer != NULL)
        ch__step_record_error(
            s,
            ch__fail(CH_FAILED_PRECONDITION,
                     "ch_step_out: must not be called inside a cond, while or scan; return the "
                     "value from the body, and make the result an output"),
            caller);
    else
        add_output(s, name, n, caller);
}

void ch__body_out(ch_step *s, ch_node *n)
{
    add_output(s, NULL, n, NULL);
}

/* Returns the index of the resource with this key, and adds the resource if necessary. -1: an
 * error is recorded in s. */
static int resource_of(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape)
{
    ch_graph    *g = s->graph;
    ch_resource *r;

    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].key == key)
            return i;
    r = ch__graph_add_resource(g);
    if (r == NULL || (r->name = ch__arena_strdup(&g->arena, name)) == NULL) {
        g->n_resources -= r != NULL;
        ch__step_record_error(s, ch__fail_memory(name), NULL);
        return -1;
    }
    r->key = key;
    r->dtype = dtype;
    r->shape = shape;
    return g->n_resources - 1;
}

void ch__step_mark_remote(ch_step *s, const void *key)
{
    ch_graph *g = ch__step_outermost(s)->graph;

    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].key == key)
            g->resource[i].is_remote = true;
}

ch_node *ch__step_read(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape)
{
    ch_read_attrs a = {.dtype = dtype, .dims = ch__dims_of(shape)};

    s = ch__step_outermost(s); /* resources belong to the outermost step */
    if (s->rc != CH_OK)
        return NULL;
    a.resource = resource_of(s, key, name, dtype, shape);
    if (a.resource < 0)
        return NULL;
    if (s->graph->resource[a.resource].value == NULL) {
        ch_node *n = ch__source_at(NULL, s, ch__roles.read, &a);

        s->graph->resource[a.resource].read = n;
        s->graph->resource[a.resource].value = n;
    }
    return s->graph->resource[a.resource].value;
}

ch_node *ch__step_borrow(ch_step *s, void *key, void (*release)(void *key), const char *name,
                         ch_dtype dtype, ch_shape shape)
{
    int i = -1;

    s = ch__step_outermost(s);
    if (s->rc == CH_OK)
        i = resource_of(s, key, name, dtype, shape);
    if (i < 0 || ch__is_borrowed(&s->graph->resource[i])) {
        release(key); /* resource_of failed, or the graph holds a reference already */
    } else {
        s->graph->resource[i].release = release;
        s->graph->resource[i].is_borrowed = true;
    }
    return i >= 0 ? ch__step_read(s, key, name, dtype, shape) : NULL;
}

static bool is_number(const ch_dims *d)
{
    for (int i = 0; i < d->rank; i++)
        if (d->dim[i].sym != 0)
            return false;
    return true;
}

static const char wants_static_rows[] =
    "; the number of rows of an input is not known while the step is recorded, unless "
    "ch_function_static_rows was called on the function";

ch_node *ch__step_write(ch_step *s, void *key, const char *name, ch_dtype dtype, ch_shape shape,
                        ch_node *value)
{
    ch_dims dims = ch__dims_of(shape);
    int     i;

    if (s->rc != CH_OK || value == NULL)
        return NULL;
    if (s->outer != NULL || value->graph != s->graph) {
        ch__step_record_error(s,
                              ch__fail(CH_FAILED_PRECONDITION,
                                       "must not be called inside a cond, while or scan; "
                                       "return the value from the body, and assign the result"),
                              NULL);
        return NULL;
    }
    if (value->dtype != dtype || !ch__dims_same(&value->dims, &dims)) {
        char have[160], want[160];

        ch__dims_print(&value->dims, have, sizeof(have));
        ch__dims_print(&dims, want, sizeof(want));
        ch__step_record_error(s,
                              ch__fail(CH_INVALID_ARGUMENT, "the value is %s%s, want %s%s%s",
                                       ch_dtype_name(value->dtype), have, ch_dtype_name(dtype),
                                       want, is_number(&value->dims) ? "" : wants_static_rows),
                              NULL);
        return NULL;
    }
    i = resource_of(s, key, name, dtype, shape);
    if (i < 0)
        return NULL;
    return s->graph->resource[i].value = value;
}

/* ---- properties of nodes ---- */

ch_dtype ch_node_dtype(const ch_node *n)
{
    return n != NULL ? n->dtype : CH_F32;
}

ch_shape ch_node_shape(const ch_node *n)
{
    return n != NULL ? ch__dims_shape(&n->dims) : ch_shape_scalar();
}

ch_step *ch_node_step(const ch_node *n)
{
    if (n == NULL || ch__node_has_ended(n))
        return n != NULL ? &ended : NULL;
    return ch__step_outermost(n->graph->step)->active;
}
