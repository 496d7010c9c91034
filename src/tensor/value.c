/* tensor/value.c -- values: a tensor, or a tensor for each replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/value.h"

#include <stdatomic.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/print.h"

ch_status ch_value_new(ch_value_kind kind, int n, ch_tensor *const *tensor, ch_value **out)
{
    ch_status st = ch__check_not_null("value", "the list of tensors", tensor, "out", out);

    if (st != CH_OK)
        return st;
    if (kind != CH_PLAIN && kind != CH_PER_REPLICA && kind != CH_MIRRORED)
        return ch__fail(CH_INVALID_ARGUMENT, "value: invalid kind %d", (int)kind);
    if (n < 1 || (kind == CH_PLAIN && n != 1))
        return ch__fail(CH_INVALID_ARGUMENT, "value: got %d tensors, want %s", n,
                        kind == CH_PLAIN ? "exactly one for a plain value" : "at least one");
    for (int i = 0; i < n; i++)
        if (tensor[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "value: component %d of %d is NULL", i, n);
    ch_value *v = ch__calloc(1, sizeof(*v) + (size_t)n * sizeof(ch_tensor *));
    if (v == NULL)
        return ch__fail_memory("value");
    atomic_init(&v->refs, 1);
    v->kind = kind;
    v->n = n;
    for (int i = 0; i < n; i++)
        v->tensor[i] = ch_tensor_ref(tensor[i]);
    *out = v;
    return CH_OK;
}

ch_value *ch_value_ref(ch_value *v)
{
    if (v != NULL)
        atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    return v;
}

void ch_value_unref(ch_value *v)
{
    if (v == NULL || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (v->recycle != NULL) {
        v->recycle(v);
        return;
    }
    for (int i = 0; i < v->n; i++)
        ch_tensor_unref(v->tensor[i]);
    ch__free(v);
}

ch_value_kind ch_value_kind_of(const ch_value *v)
{
    return v != NULL ? v->kind : CH_PLAIN;
}

int ch_value_count(const ch_value *v)
{
    return v != NULL ? v->n : 0;
}

ch_tensor *ch_value_at(const ch_value *v, int i)
{
    if (v == NULL)
        return NULL;
    if (v->kind == CH_PLAIN && i >= 0)
        return v->tensor[0];
    return i >= 0 && i < v->n ? v->tensor[i] : NULL;
}

void ch__text_value(ch_text *o, const ch_value *v)
{
    if (v == NULL || v->kind == CH_PLAIN) {
        ch__text_tensor(o, v != NULL ? v->tensor[0] : NULL);
        return;
    }
    ch__text_add(o, "%s:{", v->kind == CH_MIRRORED ? "Mirrored" : "PerReplica");
    o->indent += 2;
    for (int i = 0; i < v->n; i++) {
        ch__text_add(o, "%s\n%*s%d: ", i > 0 ? "," : "", o->indent, "", i);
        ch__text_tensor(o, v->tensor[i]);
    }
    o->indent -= 2;
    ch__text_add(o, "\n%*s}", o->indent, "");
}

int ch_value_print(const ch_value *v, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_value(&o, v);
    return ch__text_length(&o);
}
