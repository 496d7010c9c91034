/* train/layer.h -- the struct behind ch_layer, and helpers for the layers of the library.
 *
 * layer.c implements the object, layer_call.c its calls, activation.c the activations, and
 * layers_*.c the layers. A layer is a node of a tree: it has
 * children, variables (weights) and a table of functions (ch_layer_ops) with its own memory,
 * `self`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_LAYER_H
#define TRAIN_LAYER_H

#include <stdatomic.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/layer.h"
#include "cohort/strategy.h"
#include "graph/step.h"

typedef struct ch_weight {
    char   *name; /* "kernel" */
    ch_var *var;
} ch_weight;

struct ch_layer {
    atomic_int          refs;
    const ch_layer_ops *ops;
    char               *name;
    /* First layer that contains this one, which determines its path; not referenced. */
    ch_layer  *parent;
    ch_layer **child; /* referenced */
    int        n_children;
    bool       is_own;   /* layer of the library: errors name the line that called it */
    bool       is_built; /* the variables exist */
    /* Built in a call that has not ended; dropped if that call fails. */
    bool       is_fresh;
    bool       is_calling; /* a call of this layer is being recorded */
    ch_dtype   dtype;      /* dtype of the variables; float inputs are cast to it */
    uint64_t   seed;
    ch_weight *weight;
    int        n_weights, cap_weights;
    ch_step   *building; /* step that is being recorded, during `build`; else NULL */
    bool       was_called;
    /* Dtype and shape of the output of the last call; valid if was_called. */
    ch_tensor_spec out;
    /* Arrays that ch_layer_vars [0] and ch_layer_trainable [1] return. */
    ch_var **list[2];
    int      cap_list[2];
    /* Memory of the kind of layer: a copy of the argument of ch_layer_new. */
    max_align_t self[];
};

static inline void *ch__layer_self(ch_layer *l)
{
    return l->self;
}

/* Creates a layer of the library. Does not check its arguments, and sets is_own. Otherwise the
 * same as ch_layer_new: takes ownership of the children, also on an error. */
ch_layer *ch__layer_new(const ch_layer_ops *ops, const void *self, size_t self_bytes, int n,
                        ch_layer *const *child);
/* Records an error of a constructor, INVALID_ARGUMENT. Returns NULL. */
ch_layer *ch__layer_fail(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
/* Returns the last error of a constructor on this thread as an error about `what`, and clears
 * it. Returns INVALID_ARGUMENT if there is none. To be called when a layer is NULL. */
ch_status ch__layer_last_error(const char *what);
/* Clears the last error of a constructor on this thread. */
void ch__layer_clear_error(void);
/* Drops the variables of the layer, without those of its children. */
void ch__layer_drop_weights(ch_layer *l);

/* Returns true if the last axis of x has the size that the layer was built for. Otherwise fails
 * the step and returns false. */
bool ch__layer_check_width(const ch_layer *l, ch_step *s, const ch_node *x, int64_t width);
/* Returns the size of an axis of x; -1 is the last axis. INVALID_ARGUMENT: there is no such
 * axis or its size is not known. For use in `build`. */
ch_status ch__layer_size(const ch_layer *l, const ch_node *x, int axis, int64_t *out);

bool ch__is_activation(ch_activation a);
/* Applies an activation, for which ch__is_activation must be true. */
ch_node *ch__activate(ch_node *x, ch_activation a);
/* Returns *given, or `otherwise` if `given` is NULL. */
ch_init ch__init_or(const ch_init *given, ch_init otherwise);

/* Sets the width of a dense layer. Must be called before its first call: the layer that
 * contains it may know the width only in its own `build`. */
void ch__dense_set_units(ch_layer *dense, int64_t units);

#endif
