/* cohort/value.h -- values and tuples: tensors of one or several replicas, and lists of them.
 *
 * A value is a tensor, or a tensor for each replica. A tuple is an ordered list of values, with
 * names or without: the arguments of a run, its results, or a batch.
 *
 *     rc = ch_tuple_of(2, (ch_tensor *[]){x, y}, &batch);     // plain leaves, without names
 *     const ch_value *loss = ch_tuple_get(out, "loss");
 *
 * There are three kinds of values:
 *   - plain: a single tensor.
 *   - per-replica: a tensor for each replica of this process. They may differ.
 *   - mirrored: a tensor for each replica of this process. The creator promises that they are
 *     equal. The copies of a variable and the results of an update are also mirrored if an
 *     update has made them differ.
 *
 * Nested structures are expressed by names: "a/b". Values and tuples are reference counted and
 * do not change once created, so several threads may read them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_VALUE_H
#define COHORT_VALUE_H

#include "cohort/tensor.h"

typedef struct ch_value ch_value;
typedef struct ch_tuple ch_tuple;

typedef enum ch_value_kind { CH_PLAIN, CH_PER_REPLICA, CH_MIRRORED } ch_value_kind;

/* Creates a value with references to the `n` tensors. n must be 1 for CH_PLAIN, and at least 1
 * for the other kinds. */
CH_API CH_MUST_CHECK ch_status ch_value_new(ch_value_kind kind, int n, ch_tensor *const *tensor,
                                            ch_value **out);
CH_API ch_value               *ch_value_ref(ch_value *v);
CH_API void                    ch_value_unref(ch_value *v);

CH_API ch_value_kind ch_value_kind_of(const ch_value *v);
CH_API int           ch_value_count(const ch_value *v); /* number of components */
/* Returns component i, or NULL if i is out of range. A plain value returns its tensor for every
 * i, because all replicas share it. Borrowed. */
CH_API ch_tensor *ch_value_at(const ch_value *v, int i);
/* Writes a value as "PerReplica:{\n  0: tensor(...),\n  1: tensor(...)\n}", or a plain value as
 * its tensor. Returns the length needed, as snprintf does. */
CH_API int ch_value_print(const ch_value *v, char *text, size_t size);

/* Creates a tuple with references to the `n` values. `name` may be NULL, and so may each of its
 * entries. Copies the names. INVALID_ARGUMENT: two leaves have the same name. */
CH_API CH_MUST_CHECK ch_status ch_tuple_new(int n, ch_value *const *value,
                                            const char *const *name, ch_tuple **out);
/* Creates a tuple of plain leaves without names, with references to the `n` tensors. */
CH_API CH_MUST_CHECK ch_status ch_tuple_of(int n, ch_tensor *const *tensor, ch_tuple **out);
CH_API ch_tuple               *ch_tuple_ref(ch_tuple *t);
CH_API void                    ch_tuple_unref(ch_tuple *t);

/* These functions return the number of leaves, and leaves and names by position or by name.
 * Borrowed. */
CH_API int         ch_tuple_count(const ch_tuple *t);                 /* number of leaves */
CH_API ch_value   *ch_tuple_at(const ch_tuple *t, int i);             /* NULL: out of range */
CH_API const char *ch_tuple_name(const ch_tuple *t, int i);           /* NULL: no name */
CH_API ch_value   *ch_tuple_get(const ch_tuple *t, const char *name); /* NULL: no such leaf */
/* Writes a tuple as text. Returns the length needed, as snprintf does. */
CH_API int ch_tuple_print(const ch_tuple *t, char *text, size_t size);

#endif
