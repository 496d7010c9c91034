/* train/layer_call.c -- calls of layers: checks the inputs, builds the layer, records its ops.
 *
 * Invariant: the variables of a layer are created in its first call (`build`). If that call or
 * the outermost call around it fails, they are dropped, and the layer can be built again
 * (is_fresh, finish_call). Programs, models and layers that contain layers are the callers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cohort/math.h"
#include "train/layer.h"

/* ---- build ---- */

/* Creates the variables of the layer, if it was not built yet. */
static ch_status build(ch_layer *l, ch_step *s, int n, ch_node *const *in)
{
    uint64_t  mark = ch__fail_mark();
    ch_status rc = CH_OK;

    if (l->is_built)
        return CH_OK;
    if (!ch_dtype_is_float(l->dtype))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "layer %s: the dtype of its variables is %s, want a float type",
                        l->name, ch_dtype_name(l->dtype));
    l->building = s;
    if (l->ops->build != NULL)
        rc = ch__fail_since(mark, l->ops->build(l, l->self, n, in));
    l->building = NULL;
    if (rc == CH_OK)
        rc = ch_step_status(s);
    if (rc != CH_OK)
        ch__layer_drop_weights(l);
    l->is_built = l->is_fresh = rc == CH_OK;
    return rc;
}

/* Ends a call that failed, or an outermost call. If it failed, drops the variables that it
 * created in this layer and its children. */
static void finish_call(ch_layer *l, bool succeeded)
{
    if (l->is_fresh && !succeeded) {
        ch__layer_drop_weights(l);
        l->is_built = l->was_called = false;
    }
    l->is_fresh = false;
    for (int i = 0; i < l->n_children; i++)
        finish_call(l->child[i], succeeded);
}

/* ---- checks of inputs ---- */

static void print_node(const ch_node *x, char *text, size_t size)
{
    ch_tensor_spec_print(
        &(ch_tensor_spec){.dtype = ch_node_dtype(x), .shape = ch_node_shape(x)}, text, size);
}

static bool is_within(int n, ch_layer_bounds b)
{
    return n >= b.least && (b.most == 0 || n <= b.most);
}

/* Writes the bounds as "3", "1 to 3" or "at least 2". */
static void print_bounds(ch_layer_bounds b, char text[64])
{
    if (b.most == 0)
        snprintf(text, 64, "at least %d", b.least);
    else if (b.least == b.most)
        snprintf(text, 64, "%d", b.least);
    else
        snprintf(text, 64, "%d to %d", b.least, b.most);
}

/* Returns true if the number of inputs and their ranks are within the bounds of ops. Otherwise
 * fails the step and returns false. */
static bool check_inputs(const ch_layer *l, ch_step *s, int n, ch_node *const *in)
{
    char have[160], want[64];

    if (!is_within(n, l->ops->n_in)) {
        print_bounds(l->ops->n_in, want);
        ch_step_fail(s, "%s: called with %d nodes, want %s", l->ops->type, n, want);
        return false;
    }
    for (int i = 0; i < n; i++) {
        ch_layer_bounds rank = l->ops->rank[i];

        if (is_within(ch_node_shape(in[i]).rank, rank))
            continue;
        print_node(in[i], have, sizeof(have));
        print_bounds(rank, want);
        ch_step_fail(s, "%s: input %d is %s, want %s %s", l->ops->type, i, have, want,
                     rank.least == 1 && rank.most <= 1 ? "axis" : "axes");
        return false;
    }
    return true;
}

/* Casts the float inputs to the dtype of the layer. Fails the step and returns false if an
 * input is NULL or their number is wrong. */
static bool cast_inputs(const ch_layer *l, ch_step *s, int n, ch_node *const *x, ch_node **in)
{
    if (n < 1 || n > CH_LAYER_INPUTS) {
        ch_step_fail(s, "layer %s: called with %d nodes, want 1 to %d", l->name, n,
                     CH_LAYER_INPUTS);
        return false;
    }
    for (int i = 0; i < n; i++) {
        in[i] = x[i];
        if (x[i] == NULL)
            ch_step_fail(s, "layer %s: input %d is NULL", l->name, i);
        else if (ch_dtype_is_float(ch_node_dtype(x[i])) && ch_node_dtype(x[i]) != l->dtype)
            in[i] = ch_cast(x[i], l->dtype);
        if (in[i] == NULL)
            return false;
    }
    return true;
}

bool ch__layer_check_width(const ch_layer *l, ch_step *s, const ch_node *x, int64_t width)
{
    ch_shape shape = ch_node_shape(x);
    char     have[128];

    if (shape.rank > 0 && shape.dim[shape.rank - 1] == width)
        return true;
    print_node(x, have, sizeof(have));
    ch_step_fail(s,
                 "%s: the input is %s, but the layer was built for %lld on the last axis; the "
                 "variables of a layer keep their sizes",
                 l->ops->type, have, (long long)width);
    return false;
}

ch_status ch__layer_size(const ch_layer *l, const ch_node *x, int axis, int64_t *out)
{
    ch_shape shape = ch_node_shape(x);
    char     have[128];
    int      k = axis < 0 ? axis + shape.rank : axis;

    if (k >= 0 && k < shape.rank && shape.dim[k] >= 0) {
        *out = shape.dim[k];
        return CH_OK;
    }
    print_node(x, have, sizeof(have));
    return ch__fail(CH_INVALID_ARGUMENT, "%s: the input is %s, want a known size on %s%d",
                    l->ops->type, have, axis == -1 ? "the last axis, " : "axis ", axis);
}

/* ---- calls ---- */

/* Builds the layer if necessary and records its call. Returns NULL after an error, which the
 * step keeps. */
static ch_node *record(ch_layer *l, ch_step *s, int n, ch_node *const *x, bool training,
                       const void *caller)
{
    ch_node  *in[CH_LAYER_INPUTS], *y = NULL;
    ch_status rc;

    if (!cast_inputs(l, s, n, x, in) || !check_inputs(l, s, n, in))
        return NULL;
    rc = build(l, s, n, in);
    if (rc == CH_OK)
        y = l->ops->call(l, l->self, s, n, in, training);
    else
        ch__step_record_error(s, rc, caller);
    if (rc == CH_OK && y == NULL) /* has no effect if the step already has an error */
        ch_step_fail(s, "layer %s: its `call` returned NULL", l->name);
    if (y != NULL) {
        l->out = (ch_tensor_spec){.dtype = ch_node_dtype(y), .shape = ch_node_shape(y)};
        l->was_called = true;
    }
    return y;
}

static ch_node *call(ch_layer *l, ch_step *s, int n, ch_node *const *x, bool training,
                     const void *caller)
{
    const void *before;
    ch_node    *y;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    if (l == NULL) {
        ch__step_record_error(s, ch__layer_last_error("a layer to call"), caller);
        return NULL;
    }
    if (n < 0 || (n > 0 && x == NULL)) {
        ch__step_record_error(s,
                              ch__fail(CH_INVALID_ARGUMENT,
                                       "%s: the list of inputs is %s (got %d inputs)", l->name,
                                       x == NULL ? "NULL" : "invalid", n),
                              caller);
        return NULL;
    }
    /* Errors in layers of the library name the line that called the outermost of them. Errors
     * in layers of the program name the line inside them. */
    before = s->caller;
    s->caller = !l->is_own ? NULL : before != NULL ? before : caller;
    ch_step_enter(s, l->name);
    l->is_calling = true;
    y = record(l, s, n, x, training, caller);
    l->is_calling = false;
    if (y != NULL)
        ch__layer_clear_error();
    if (y == NULL || l->parent == NULL || !l->parent->is_calling)
        finish_call(l, y != NULL);
    ch_step_leave(s);
    s->caller = before;
    return y;
}

ch_node *ch_layer_call(ch_layer *l, ch_step *s, ch_node *x, bool training)
{
    return call(l, s, 1, &x, training, __builtin_return_address(0));
}

ch_node *ch_layer_call_n(ch_layer *l, ch_step *s, int n, ch_node *const *x, bool training)
{
    return call(l, s, n, x, training, __builtin_return_address(0));
}
