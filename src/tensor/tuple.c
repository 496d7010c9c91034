/* tensor/tuple.c -- tuples: ordered lists of values, with or without names.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/value.h"
#include "tensor/print.h"

/* Returns a tuple of `n` empty leaves, which ch_tuple_unref can free at any time. */
static ch_tuple *tuple_alloc(int n)
{
    ch_tuple *t = ch__calloc(1, sizeof(*t) + (size_t)n * sizeof(t->leaf[0]));

    if (t == NULL)
        return NULL;
    atomic_init(&t->refs, 1);
    t->n = n;
    return t;
}

static int tuple_index(const ch_tuple *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (t->leaf[i].name != NULL && strcmp(t->leaf[i].name, name) == 0)
            return i;
    return -1;
}

static ch_status tuple_set(ch_tuple *t, int i, ch_value *value, const char *name)
{
    if (value == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "tuple: leaf %d of %d is NULL", i, t->n);
    if (name != NULL) {
        int other = tuple_index(t, name);

        if (other >= 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "tuple: leaves %d and %d are both named \"%s\"; names must differ",
                            other, i, name);
        t->leaf[i].name = ch__strdup(name);
        if (t->leaf[i].name == NULL)
            return ch__fail_memory("tuple");
    }
    t->leaf[i].value = ch_value_ref(value);
    return CH_OK;
}

ch_status ch_tuple_new(int n, ch_value *const *value, const char *const *name, ch_tuple **out)
{
    if (n < 0 || (n > 0 && value == NULL) || out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "tuple: got %d leaves%s", n,
                        n < 0         ? ", want 0 or more"
                        : out == NULL ? ", but out is NULL"
                                      : ", but the list of values is NULL");
    ch_tuple *t = tuple_alloc(n);
    if (t == NULL)
        return ch__fail_memory("tuple");
    for (int i = 0; i < n; i++) {
        ch_status st = tuple_set(t, i, value[i], name != NULL ? name[i] : NULL);

        if (st != CH_OK) {
            ch_tuple_unref(t);
            return st;
        }
    }
    *out = t;
    return CH_OK;
}

ch_status ch_tuple_of(int n, ch_tensor *const *tensor, ch_tuple **out)
{
    if (n < 0 || (n > 0 && tensor == NULL) || out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "tuple: got %d leaves%s", n,
                        n < 0         ? ", want 0 or more"
                        : out == NULL ? ", but out is NULL"
                                      : ", but the list of tensors is NULL");
    ch_tuple *t = tuple_alloc(n);
    if (t == NULL)
        return ch__fail_memory("tuple");
    for (int i = 0; i < n; i++) {
        ch_status st = ch_value_new(CH_PLAIN, 1, &tensor[i], &t->leaf[i].value);

        if (st != CH_OK) {
            ch_tuple_unref(t);
            return st;
        }
    }
    *out = t;
    return CH_OK;
}

ch_tuple *ch_tuple_ref(ch_tuple *t)
{
    if (t != NULL)
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void ch_tuple_unref(ch_tuple *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (t->recycle != NULL) {
        t->recycle(t);
        return;
    }
    for (int i = 0; i < t->n; i++) {
        ch_value_unref(t->leaf[i].value);
        ch__free(t->leaf[i].name);
    }
    ch__free(t);
}

int ch_tuple_count(const ch_tuple *t)
{
    return t != NULL ? t->n : 0;
}

ch_value *ch_tuple_at(const ch_tuple *t, int i)
{
    return t != NULL && i >= 0 && i < t->n ? t->leaf[i].value : NULL;
}

const char *ch_tuple_name(const ch_tuple *t, int i)
{
    return t != NULL && i >= 0 && i < t->n ? t->leaf[i].name : NULL;
}

ch_value *ch_tuple_get(const ch_tuple *t, const char *name)
{
    return t != NULL && name != NULL ? ch_tuple_at(t, tuple_index(t, name)) : NULL;
}

/* Prints "(\n  loss: tensor(...),\n  1: tensor(...)\n)". A leaf without a name shows its
 * index. */
int ch_tuple_print(const ch_tuple *t, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    if (t == NULL) {
        ch__text_add(&o, "NULL");
        return ch__text_length(&o);
    }
    ch__text_add(&o, "(");
    o.indent = 2;
    for (int i = 0; i < t->n; i++) {
        ch__text_add(&o, "%s\n  ", i > 0 ? "," : "");
        if (t->leaf[i].name != NULL)
            ch__text_add(&o, "%s: ", t->leaf[i].name);
        else
            ch__text_add(&o, "%d: ", i);
        ch__text_value(&o, t->leaf[i].value);
    }
    ch__text_add(&o, t->n > 0 ? "\n)" : ")");
    return ch__text_length(&o);
}
