/* cohort/value.h -- one tensor, or one for each replica; and tuples of them.
 *
 * A value is plain (one tensor), per-replica (one for each replica of this process, which may
 * differ) or mirrored (one for each, promised equal by whoever made it; the copies of a variable and the results of
 * an update are called so even where an update made them differ). A tuple is an ordered list of values,
 * each with a name or without: the arguments of a run, its results, a batch. Nesting is in
 * the names: "a/b".
 *
 *     ch_tuple *batch = NULL;
 *     rc = ch_tuple_of(2, (ch_tensor *[]){x, y}, &batch);     // plain leaves, unnamed
 *     const ch_value *loss = ch_tuple_get(out, "loss");
 *
 * Both are counted, and do not change once made.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_VALUE_H
#define COHORT_VALUE_H

#include "cohort/tensor.h"

typedef struct ch_value ch_value;
typedef struct ch_tuple ch_tuple;

typedef enum ch_value_kind { CH_PLAIN, CH_PER_REPLICA, CH_MIRRORED } ch_value_kind;

/* References the `n` tensors. CH_PLAIN takes exactly one, the others at least one. */
CH_API CH_MUST_CHECK ch_status ch_value_new(ch_value_kind kind, int n, ch_tensor *const *tensor,
                                            ch_value **out);
CH_API ch_value               *ch_value_ref(ch_value *v);
CH_API void                    ch_value_unref(ch_value *v);

CH_API ch_value_kind ch_value_kind_of(const ch_value *v);
CH_API int           ch_value_count(const ch_value *v);
/* Component i; NULL out of range. A plain value has its one for every i: replicas share it. */
CH_API ch_tensor *ch_value_at(const ch_value *v, int i);
/* "PerReplica:{\n  0: tensor(...),\n  1: tensor(...)\n}"; a plain value as its tensor. */
CH_API int ch_value_print(const ch_value *v, char *text, size_t size);

/* References the values; `name` may be NULL, and so may each of its entries. INVALID_ARGUMENT
 * if two leaves have one name. */
CH_API CH_MUST_CHECK ch_status ch_tuple_new(int n, ch_value *const *value,
                                            const char *const *name, ch_tuple **out);
/* Unnamed plain leaves; references the tensors. */
CH_API CH_MUST_CHECK ch_status ch_tuple_of(int n, ch_tensor *const *tensor, ch_tuple **out);
CH_API ch_tuple               *ch_tuple_ref(ch_tuple *t);
CH_API void                    ch_tuple_unref(ch_tuple *t);

CH_API int         ch_tuple_count(const ch_tuple *t);
CH_API ch_value   *ch_tuple_at(const ch_tuple *t, int i);             /* NULL out of range */
CH_API const char *ch_tuple_name(const ch_tuple *t, int i);           /* NULL: has none */
CH_API ch_value   *ch_tuple_get(const ch_tuple *t, const char *name); /* NULL: no such leaf */
CH_API int         ch_tuple_print(const ch_tuple *t, char *text, size_t size);

#endif
