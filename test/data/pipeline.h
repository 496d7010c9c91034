/* test/data/pipeline.h -- functions that run a pipeline and compare its elements, for tests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_DATA_PIPELINE_H
#define TEST_DATA_PIPELINE_H

#include "../strategy/help.h"
#include "cohort/iterator.h"

/* The elements of a pipeline as text: "0 1 | 2 3 | !INVALID_ARGUMENT | ..."; commas separate
 * components. */
typedef struct t_given {
    char   text[65536];
    size_t used;
    int    n;
} t_given;

static inline void t_add(t_given *g, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    g->used += (size_t)vsnprintf(g->text + g->used, sizeof(g->text) - g->used, format, args);
    va_end(args);
    if (g->used >= sizeof(g->text))
        g->used = sizeof(g->text) - 1;
}

static inline void t_add_tensor(t_given *g, ch_tensor *t)
{
    ch_tensor *whole = NULL;

    t_ok(ch_tensor_contiguous(t, &whole));
    for (int64_t i = 0; i < ch_tensor_count(whole); i++) {
        t_add(g, i > 0 ? " " : "");
        if (ch_tensor_dtype(whole) == CH_STR) {
            ch_str s = ((const ch_str *)ch_tensor_data(whole))[i];

            t_add(g, "%.*s", (int)s.size, s.data);
        } else {
            ch_tensor *flat = NULL;
            double     x = 0;

            t_ok(ch_tensor_reshape(whole, ch_shape_of(ch_tensor_count(whole)), &flat));
            t_ok(ch_tensor_get(flat, &i, &x));
            t_add(g, "%.9g", x);
            ch_tensor_unref(flat);
        }
    }
    ch_tensor_unref(whole);
}

static inline void t_add_tuple(t_given *g, ch_tuple *t)
{
    t_add(g, g->n++ > 0 ? " | " : "");
    for (int i = 0; i < ch_tuple_count(t); i++) {
        ch_value *v = ch_tuple_at(t, i);

        t_add(g, i > 0 ? ", " : "");
        for (int r = 0; r < ch_value_count(v); r++) {
            t_add(g, r > 0 ? " / " : "");
            t_add_tensor(g, ch_value_at(v, r));
        }
    }
}

/* Reads up to `most` elements; -1: all. Adds errors by their names. */
static inline void t_take(ch_iterator *it, int most, t_given *g)
{
    for (int i = 0; i != most; i++) {
        ch_tuple *t = NULL;
        ch_status rc = ch_iterator_next(it, &t);

        if (rc != CH_OK) {
            t_add(g, "%s!%s", g->n++ > 0 ? " | " : "", ch_status_name(rc));
            if (rc == CH_FAILED_PRECONDITION)
                return;
            continue;
        }
        if (t == NULL)
            return;
        t_add_tuple(g, t);
        ch_tuple_unref(t);
    }
}

/* Runs the dataset, compares its elements with `want`, and releases it. */
static inline void t_gives(ch_dataset *d, const char *want)
{
    static t_given g;
    ch_iterator   *it = NULL;

    g.used = 0;
    g.n = 0;
    g.text[0] = '\0';
    t_ok(ch_iterator_new(d, &(ch_iterator_options){.go_on = true}, &it));
    t_take(it, -1, &g);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_string_equal(g.text, want);
}

#endif
