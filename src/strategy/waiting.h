/* strategy/waiting.h -- values that wait for their variables to be created.
 *
 * A restore of a checkpoint may have values of variables that do not exist yet: those of a
 * layer before its first call, or the slots of an optimizer before its first step. The restore
 * registers here (ch__waiting_add). Code that creates a variable of an object first finds out
 * whether a value is waiting for it, and then creates the variable with that value:
 *
 *     ch_waiting p = ch__waiting_find(layer, NULL, "kernel");
 *     rc = ch__waiting_create(&p, st, &spec, NULL, &v);
 *
 * Then no initial value is computed. The creators are layers and optimizers. A metric creates
 * its variables before a checkpoint can contain it, so no value can wait for them.
 *
 * Several restores may be registered. The one that was registered last is asked first. If there
 * is none, finding a value costs an atomic load.
 *
 * The functions may be called by any thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_WAITING_H
#define STRATEGY_WAITING_H

#include "strategy/strategy.h"

/* A restore. The variable is named by its object (a ch_layer or ch_optimizer) and its name
 * there (train/parts.h); `of` is the variable that a slot belongs to, NULL if the variable is
 * no slot. */
typedef struct ch_waiting_ops {
    /* Returns true if a value waits for the variable, and describes it in *out. The source must
     * stay valid until `free`. The call must be short, and must not create variables or call
     * functions of this header: the registry is locked. A value must not be given up when its
     * variable is created: a layer frees the variables of a call that fails, and asks again
     * when it creates them anew. */
    bool (*find)(void *arg, const void *object, ch_var *of, const char *name,
                 ch_value_source *out);
    /* Called after the variable was created with the value; may be NULL. The implementation
     * must not keep a reference to `v`, which would keep its name in use, nor its address,
     * because `v` may be freed again. */
    void (*created)(void *arg, const void *object, ch_var *of, const char *name, ch_var *v);
    /* Frees `arg`. Called once, when the restore was removed and no variable is being created
     * with a value of it. */
    void (*free)(void *arg);
} ch_waiting_ops;

/* A registered restore. */
typedef struct ch_waiting_restore ch_waiting_restore;

/* Registers a restore. `ops` is borrowed; `arg` belongs to the registry after success. */
CH_MUST_CHECK ch_status ch__waiting_add(const ch_waiting_ops *ops, void *arg,
                                        ch_waiting_restore **out);
/* Removes a restore: its values wait no longer. Does not wait for a variable that is being
 * created with a value of the restore. */
void ch__waiting_remove(ch_waiting_restore *r);

/* The value that waits for a variable. */
typedef struct ch_waiting {
    ch_waiting_restore *restore; /* counted reference; NULL: no value waits */
    ch_value_source     source;
    /* The variable, borrowed. */
    const void *object;
    ch_var     *of;
    const char *name;
} ch_waiting;

/* Returns the value that waits for a variable. If there is one, the caller must call
 * ch__waiting_create. */
ch_waiting ch__waiting_find(const void *object, ch_var *of, const char *name);
/* Creates the variable as ch__var_new_from does: with the value of `p`, or, if none waits, with
 * the initial value of `spec`. Releases *p, also on an error. */
CH_MUST_CHECK ch_status ch__waiting_create(ch_waiting *p, ch_strategy *st,
                                           const ch_var_spec *spec, const ch_var *beside,
                                           ch_var **out);

#endif
