/* data/select.c -- the stage select: chooses, reorders and renames components of elements.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"

typedef struct selecting {
    ch_cursor base;
    int      *from; /* for each part: the index of the input's part; owned */
} selecting;

/* Finds the part that `text` selects: "new=old", "old", or a number in place of `old`. Returns
 * its index, or -1 if there is none. *name and *name_length are its new name, without a
 * terminating NUL; *name is NULL if the part has no name. */
static int find(const ch_dataset *in, const char *text, const char **name, int *name_length)
{
    const char *old = strchr(text, '=');

    *name = text;
    *name_length = old != NULL ? (int)(old - text) : (int)strlen(text);
    old = old != NULL ? old + 1 : text;
    for (int i = 0; i < in->n_parts; i++)
        if (in->spec[i].name != NULL && strcmp(in->spec[i].name, old) == 0)
            return i;
    if (old[0] < '0' || old[0] > '9')
        return -1;
    char *end;
    long  i = strtol(old, &end, 10);
    if (*end != '\0' || i >= in->n_parts)
        return -1;
    if (old == text) { /* a number alone keeps the old name */
        *name = in->spec[i].name;
        *name_length = *name != NULL ? (int)strlen(*name) : 0;
    }
    return (int)i;
}

/* Sets the spec of part i to the part that `text` selects. */
static ch_status set_selected(ch_dataset *d, int i, const char *text)
{
    const char    *name;
    int            length, at = find(d->in[0], text, &name, &length);
    ch_tensor_spec spec;
    char          *own;
    ch_status      rc;

    if (at < 0)
        return ch__dataset_fail(d, "the input has no component \"%.100s\"", text);
    own = ch__calloc((size_t)length + 1, 1);
    if (own == NULL)
        return ch__fail_memory("select");
    if (name != NULL)
        memcpy(own, name, (size_t)length);
    spec = d->in[0]->spec[at];
    spec.name = own;
    rc = ch__dataset_set_part(d, i, &spec);
    ch__free(own);
    return rc;
}

static ch_status select_infer(ch_dataset *d)
{
    const Cohort__Select *a = CH_ATTRS_OF(d, Cohort__Select);
    const ch_dataset     *in = d->in[0];
    ch_status             rc;

    if (a->n_names < 1 || a->n_names > CH_MAX_PARTS)
        return ch__dataset_fail(d, "components: wrong number (got %zu, want 1 to %d)",
                                a->n_names, CH_MAX_PARTS);
    rc = ch__dataset_parts(d, (int)a->n_names);
    for (int i = 0; i < d->n_parts && rc == CH_OK; i++)
        rc = set_selected(d, i, a->names[i]);
    d->same_rows = in->same_rows;
    d->cardinality = in->cardinality;
    return rc;
}

static ch_status select_open(ch_cursor *c)
{
    const Cohort__Select *a = CH_ATTRS(c, Cohort__Select);
    selecting            *x = (selecting *)c;

    x->from = ch__calloc(a->n_names, sizeof(int));
    if (x->from == NULL)
        return ch__fail_memory("select");
    for (size_t i = 0; i < a->n_names; i++) {
        const char *name;
        int         length;

        x->from[i] = find(c->dataset->in[0], a->names[i], &name, &length);
    }
    return CH_OK;
}

static ch_status select_next(ch_cursor *c, ch_element **out)
{
    selecting  *x = (selecting *)c;
    ch_element *e = NULL, *some;
    bool        is_row;
    ch_status   rc = ch__cursor_next(c->in[0], &e);

    if (rc != CH_OK || e == NULL)
        return rc;
    some = ch__element_new(c->dataset->n_parts, 1, 0);
    if (some == NULL) {
        ch__element_free(e);
        return ch__fail_memory("select");
    }
    for (int i = 0; i < some->n; i++)
        some->part[i] = e->part[x->from[i]];
    is_row = e->is_row;
    some->owner[0] = ch__element_buffer(e);
    if (some->owner[0] == NULL) {
        ch__element_free(some);
        return ch__fail_memory("select");
    }
    some->is_row = is_row;
    *out = some;
    return CH_OK;
}

static void select_close(ch_cursor *c)
{
    ch__free(((selecting *)c)->from);
}

const ch_stage ch__stage_select = {
    .name = "select",
    .version = 1,
    .traits = CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__select__descriptor,
    .cursor_bytes = sizeof(selecting),
    .infer = select_infer,
    .open = select_open,
    .next = select_next,
    .rewind = ch__rewind_inputs,
    .can_step_back = ch__input_can_step_back,
    .save = ch__save_passing,
    .load = ch__load_inputs,
    .close = select_close,
};

ch_dataset *ch_dataset_select(ch_dataset *d, int n, const char *const *name)
{
    Cohort__Select a = COHORT__SELECT__INIT;
    ch_arena       arena = {0};
    bool           fits = n > 0 && n <= CH_MAX_PARTS && name != NULL;
    ch_status      rc = CH_OK;

    a.names = ch__arena_alloc(&arena, ((size_t)(fits ? n : 0) + 1) * sizeof(char *));
    for (int i = 0; i < n && fits && a.names != NULL; i++) {
        a.names[i] = ch__arena_strdup(&arena, name[i]);
        fits = a.names[i] != NULL;
        a.n_names++;
    }
    if (!fits || a.names == NULL)
        rc = ch__fail(CH_INVALID_ARGUMENT, "select: names%s (got %d, want 1 to %d)",
                      n > 0 && n <= CH_MAX_PARTS ? ": one of them is NULL" : ": wrong number",
                      n, CH_MAX_PARTS);
    d = ch__dataset_new(&ch__stage_select,
                        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d});
    ch__arena_drop(&arena);
    return d;
}
