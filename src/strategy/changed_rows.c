/* strategy/changed_rows.c -- the rows of variables that have changed (changed_rows.h).
 *
 * A variable of this process has a ch_row_marks (ch_var.marks). Runs mark the rows that they
 * write (graph/exec.c, through ch__var_marks), and writes outside steps mark ranges
 * (var_local.c). The rows of a variable in tiles are not marked: all of them always count as
 * changed. The marks of a variable on servers are there (job/server/values.h), and are
 * read from the snapshot of a cut.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/changed_rows.h"

#include "base/fault.h"
#include "base/mem.h"

/* Replaces the marks of a variable, and frees the old ones. Programs that were prepared before
 * find the new marks because the generation changes. */
static void set_marks(ch_var *v, ch_row_marks *marks)
{
    ch_strategy *st = v->strategy;

    pthread_mutex_lock(&st->lock);
    ch__free(v->marks);
    v->marks = marks;
    atomic_fetch_add(&st->generation, 1);
    pthread_mutex_unlock(&st->lock);
}

ch_status ch__mark_rows(ch_var *v)
{
    ch_row_marks *marks = NULL;
    ch_status     rc;

    if (!ch__var_is_local(v))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "mark rows of %s: the variable is on servers; take a cut with "
                        "CH_MARKS_BEGIN",
                        v->name);
    if (v->shape.rank == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "mark rows of %s: a scalar has no rows", v->name);
    if (v->marks != NULL)
        ch__row_marks_clear(v->marks);
    if (v->marks != NULL || ch__var_is_per_replica(v) || v->tiles != NULL)
        return CH_OK;
    rc = ch__row_marks_new(v->shape.dim[0], &marks);
    if (rc == CH_OK)
        set_marks(v, marks);
    return rc;
}

void ch__unmark_rows(ch_var *v)
{
    if (v->marks != NULL)
        set_marks(v, NULL);
}

/* Lists the rows of a shard from its marks in a cut. */
static ch_status list_of_cut(const ch_cut *cut, ch_var *v, ch_changed_rows *out)
{
    ch_tensor *bits = NULL;
    ch_status  rc = ch__cut_read_marks(cut, v, &bits);

    out->all = rc == CH_OK && ch_tensor_bytes(bits) == 0;
    if (rc == CH_OK && !out->all)
        rc = ch__row_marks_list(v->shape.dim[0], (const uint8_t *)bits->data, &out->n,
                                &out->ids);
    ch_tensor_unref(bits);
    return rc;
}

ch_status ch__changed_rows(const ch_cut *cut, ch_var *v, ch_changed_rows *out)
{
    *out = (ch_changed_rows){.ids = NULL};
    if (cut != NULL)
        return list_of_cut(cut, v, out);
    out->all = v->marks == NULL || v->marks->all || atomic_load(&v->is_exposed);
    return out->all ? CH_OK
                    : ch__row_marks_list(v->marks->n_rows, v->marks->bits, &out->n, &out->ids);
}

void ch__changed_rows_drop(ch_changed_rows *c)
{
    ch__free(c->ids);
    *c = (ch_changed_rows){.ids = NULL};
}
