/* train/layer.h -- the inside of a layer, and what the library's own layers share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_LAYER_H
#define TRAIN_LAYER_H

#include <stdatomic.h>

#include "base/by_name.h"
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
    ch_layer           *parent; /* the first that took it; not referenced */
    ch_layer          **child;  /* referenced */
    int                 n_children;
    bool                is_own;   /* one of the library's: errors name its caller's line */
    bool                is_built; /* its variables are there */
    bool                is_fresh; /* ... since a call that is not over */
    bool                is_calling;
    ch_dtype            dtype; /* of variables and of inputs that are floats */
    uint64_t            seed;
    ch_weight          *weight;
    int                 n_weights, cap_weights;
    ch_step            *building; /* in build: the step that is being recorded */
    bool                was_called;
    ch_tensor_spec      out;     /* what the last call gave */
    ch_var            **list[2]; /* what ch_layer_vars and ch_layer_trainable handed out */
    int                 cap_list[2];
    max_align_t         self[]; /* the layer's own memory */
};

static inline void *ch__layer_self(ch_layer *l)
{
    return l->self;
}

/* As ch_layer_new, for layers whose call is the library's. */
ch_layer *ch__layer_new(const ch_layer_ops *ops, const void *self, size_t self_bytes, int n,
                        ch_layer *const *child);
/* Why a layer was not made; returns NULL. */
ch_layer *ch__layer_refuse(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
/* Why a layer is NULL: the last error of a constructor on this thread, if nobody asked yet. */
ch_status ch__layer_why_not(const char *what);
void      ch__layer_forget(void); /* that error is of the past */

/* True if the last axis of x has the size that the layer was built for. */
bool ch__layer_wants_width(const ch_layer *l, ch_step *s, const ch_node *x, int64_t width);
/* In build: the size of an axis, -1 is the last. INVALID_ARGUMENT where it is no number. */
ch_status ch__layer_size(const ch_layer *l, const ch_node *x, int axis, int64_t *out);

bool     ch__is_activation(ch_activation a);
ch_node *ch__activate(ch_node *x, ch_activation a);
/* What a pointer of options points to, or the default. */
ch_init ch__init_or(const ch_init *given, ch_init otherwise);

/* A dense layer whose width its owner sets when that is known: before it is first called. */
void ch__dense_set_units(ch_layer *dense, int64_t units);

#endif
