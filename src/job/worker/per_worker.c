/* job/worker/per_worker.c -- the worker's copy of a per-worker variable (per_worker.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/worker/per_worker.h"

#include "base/fault.h"
#include "base/mem.h"

struct ch_per_worker_var {
    ch_device *device;
    ch_tensor *initial, *value; /* the same tensor until the first commit */
    ch_tensor *spare;           /* memory for the next value; NULL: not allocated yet */
};

ch_status ch__per_worker_new(ch_device *device, ch_tensor *initial, ch_per_worker_var **out)
{
    ch_per_worker_var *k = ch__calloc(1, sizeof(*k));

    if (k == NULL)
        return ch__fail_memory("a variable");
    k->device = device;
    k->initial = ch_tensor_ref(initial);
    k->value = ch_tensor_ref(initial);
    *out = k;
    return CH_OK;
}

void ch__per_worker_free(ch_per_worker_var *k)
{
    if (k == NULL)
        return;
    ch_tensor_unref(k->initial);
    ch_tensor_unref(k->value);
    ch_tensor_unref(k->spare);
    ch__free(k);
}

ch_tensor *ch__per_worker_value(const ch_per_worker_var *k)
{
    return k->value;
}

/* Returns true if no other reference to the tensor or to its buffer exists. */
static bool is_private(const ch_tensor *t)
{
    return atomic_load(&t->refs) == 1 && atomic_load(&t->buffer->refs) == 1;
}

ch_status ch__per_worker_prepare(ch_per_worker_var *k, const ch_tensor *next)
{
    if (next->dtype != k->initial->dtype || !ch_shape_equal(next->shape, k->initial->shape))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "the new value of a per-worker variable has another dtype or shape");
    if (k->spare == NULL || !is_private(k->spare)) {
        ch_tensor *t = NULL;
        ch_status  rc = ch_tensor_new_on(k->device, next->dtype, next->shape, &t);

        if (rc != CH_OK)
            return rc;
        ch_tensor_unref(k->spare);
        k->spare = t;
    }
    return ch_tensor_copy(next, k->spare);
}

/* The old value becomes the spare. Its memory is used again when no reader holds it. */
void ch__per_worker_commit(ch_per_worker_var *k)
{
    ch_tensor *old = k->value;

    k->value = k->spare;
    k->spare = old;
}

void ch__per_worker_reset(ch_per_worker_var *k)
{
    ch_tensor_unref(k->value);
    k->value = ch_tensor_ref(k->initial);
}
