/* fit/state.c -- writes and reads the state of callbacks and trainings.
 *
 * Implements ch_state, a list of named values that becomes a tuple, and functions that read
 * such a tuple. The callbacks of the library and resume.c call them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/state.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

/* ---- writing ---- */

/* Adds a leaf named "<name>/<more>"; `more` NULL: "<name>". References the value. */
static void put_value(ch_state *s, const char *name, const char *more, ch_value *v)
{
    size_t room = strlen(name) + (more != NULL ? strlen(more) + 1 : 0) + 1;
    char  *own;

    if (s->rc != CH_OK)
        return;
    own = ch__malloc(room);
    if (own == NULL || !ch__grow((void **)&s->at, &s->capacity, s->n + 1, sizeof(*s->at))) {
        ch__free(own);
        s->rc = ch__fail_memory("a saved state");
        return;
    }
    snprintf(own, room, "%s%s%s", name, more != NULL ? "/" : "", more != NULL ? more : "");
    s->at[s->n++] = (struct ch_state_leaf){own, ch_value_ref(v)};
}

static void put_tensor(ch_state *s, const char *name, const char *more, ch_tensor *t)
{
    ch_value *v = NULL;

    if (s->rc == CH_OK)
        s->rc = ch_value_new(CH_PLAIN, 1, &t, &v);
    if (s->rc == CH_OK)
        put_value(s, name, more, v);
    ch_value_unref(v);
}

static void put_copy(ch_state *s, const char *name, const char *more, ch_dtype dtype,
                     ch_shape shape, const void *data)
{
    ch_tensor *t = NULL;

    if (s->rc == CH_OK)
        s->rc = ch_tensor_copy_of(dtype, shape, data, &t);
    if (s->rc == CH_OK)
        put_tensor(s, name, more, t);
    ch_tensor_unref(t);
}

void ch__state_put(ch_state *s, const char *name, ch_tensor *t)
{
    put_tensor(s, name, NULL, t);
}

void ch__state_put_int(ch_state *s, const char *name, int64_t x)
{
    put_copy(s, name, NULL, CH_I64, ch_shape_scalar(), &x);
}

void ch__state_put_number(ch_state *s, const char *name, double x)
{
    put_copy(s, name, NULL, CH_F64, ch_shape_scalar(), &x);
}

void ch__state_put_text(ch_state *s, const char *name, const char *text)
{
    put_copy(s, name, NULL, CH_STR, ch_shape_scalar(), &(ch_str){text, strlen(text)});
}

void ch__state_put_numbers(ch_state *s, const char *name, int n, const double *x)
{
    put_copy(s, name, NULL, CH_F64, ch_shape_of(n), n > 0 ? x : (const double[]){0});
}

void ch__state_put_logs(ch_state *s, const char *name, const ch_logs *logs)
{
    ch_str *names = ch__calloc((size_t)logs->n + 1, sizeof(ch_str));
    double *values = ch__calloc((size_t)logs->n + 1, sizeof(double));

    if (s->rc == CH_OK && (names == NULL || values == NULL))
        s->rc = ch__fail_memory("a saved state");
    for (int i = 0; i < logs->n && s->rc == CH_OK; i++) {
        names[i] = (ch_str){logs->at[i].name, strlen(logs->at[i].name)};
        values[i] = logs->at[i].value;
    }
    put_copy(s, name, "names", CH_STR, ch_shape_of(logs->n), names);
    put_copy(s, name, "values", CH_F64, ch_shape_of(logs->n), values);
    ch__free(names);
    ch__free(values);
}

void ch__state_put_tuple(ch_state *s, const char *name, const ch_tuple *t)
{
    for (int i = 0; i < ch_tuple_count(t); i++)
        put_value(s, name, ch_tuple_name(t, i), ch_tuple_at(t, i));
}

ch_status ch__state_end(ch_state *s, ch_tuple **out)
{
    ch_value   **value = ch__calloc((size_t)s->n + 1, sizeof(ch_value *));
    const char **name = ch__calloc((size_t)s->n + 1, sizeof(char *));
    ch_status    rc = s->rc;

    if (rc == CH_OK && (value == NULL || name == NULL))
        rc = ch__fail_memory("a saved state");
    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        value[i] = s->at[i].value;
        name[i] = s->at[i].name;
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(s->n, value, name, out);
    for (int i = 0; i < s->n; i++) {
        ch_value_unref(s->at[i].value);
        ch__free(s->at[i].name);
    }
    ch__free(s->at);
    *s = (ch_state){0};
    ch__free(value);
    ch__free(name);
    return rc;
}

/* ---- reading ---- */

ch_tensor *ch__state_get(const ch_tuple *t, const char *name)
{
    const ch_value *v = ch_tuple_get(t, name);

    return v != NULL ? ch_value_at(v, 0) : NULL;
}

/* Finds a leaf with the dtype and the rank, which is contiguous. */
static ch_status find(const ch_tuple *t, const char *name, ch_dtype dtype, int rank,
                      ch_tensor **out)
{
    ch_tensor *x = ch__state_get(t, name);
    char       text[96];

    if (x != NULL && ch_tensor_dtype(x) == dtype && ch_tensor_shape(x).rank == rank &&
        ch_tensor_is_contiguous(x)) {
        *out = x;
        return CH_OK;
    }
    if (x != NULL)
        ch_tensor_spec_print(&(ch_tensor_spec){name, ch_tensor_dtype(x), ch_tensor_shape(x)},
                             text, sizeof(text));
    return ch__fail(CH_INVALID_ARGUMENT,
                    "the saved state has %s%s, want \"%s\" as %s of rank %d; it was saved by "
                    "another program or version",
                    x != NULL ? "" : "no leaf ", x != NULL ? text : "of this name", name,
                    ch_dtype_name(dtype), rank);
}

ch_status ch__state_get_int(const ch_tuple *t, const char *name, int64_t *out)
{
    ch_tensor *x = NULL;
    ch_status  rc = find(t, name, CH_I64, 0, &x);

    if (rc == CH_OK)
        *out = *(const int64_t *)ch_tensor_data(x);
    return rc;
}

ch_status ch__state_get_int_in(const ch_tuple *t, const char *name, int least, int most,
                               int *out)
{
    int64_t   x = 0;
    ch_status rc = ch__state_get_int(t, name, &x);

    if (rc == CH_OK && (x < least || x > most))
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "\"%s\" of the saved state is %lld, want %d to %d; the checkpoint is "
                      "damaged",
                      name, (long long)x, least, most);
    if (rc == CH_OK)
        *out = (int)x;
    return rc;
}

ch_status ch__state_get_number(const ch_tuple *t, const char *name, double *out)
{
    ch_tensor *x = NULL;
    ch_status  rc = find(t, name, CH_F64, 0, &x);

    if (rc == CH_OK)
        *out = *(const double *)ch_tensor_data(x);
    return rc;
}

ch_status ch__state_get_str(const ch_tuple *t, const char *name, ch_str *out)
{
    ch_tensor *x = NULL;
    ch_status  rc = find(t, name, CH_STR, 0, &x);

    if (rc == CH_OK)
        *out = *(const ch_str *)ch_tensor_data(x);
    return rc;
}

ch_status ch__state_get_text(const ch_tuple *t, const char *name, char *text, size_t size)
{
    ch_str    s = {NULL, 0};
    ch_status rc = ch__state_get_str(t, name, &s);

    if (rc == CH_OK)
        snprintf(text, size, "%.*s", (int)(s.size < size ? s.size : size), s.data);
    return rc;
}

ch_status ch__state_get_numbers(const ch_tuple *t, const char *name, int *n, const double **out)
{
    ch_tensor *x = NULL;
    ch_status  rc = find(t, name, CH_F64, 1, &x);

    if (rc != CH_OK)
        return rc;
    if (ch_tensor_count(x) > INT_MAX)
        return ch__fail(CH_INVALID_ARGUMENT, "\"%s\" of the saved state has too many numbers",
                        name);
    *n = (int)ch_tensor_count(x);
    *out = ch_tensor_data(x);
    return CH_OK;
}

static ch_status set_log(ch_logs *logs, ch_str name, double value)
{
    char     *own = ch__calloc(name.size + 1, 1);
    ch_status rc;

    if (own == NULL)
        return ch__fail_memory("logs");
    if (name.size > 0)
        memcpy(own, name.data, name.size);
    rc = ch__logs_set(logs, own, value);
    ch__free(own);
    return rc;
}

ch_status ch__state_get_logs_in(const ch_tuple *t, const char *name, int from, int to,
                                ch_logs *out)
{
    char          leaf[128];
    ch_tensor    *names = NULL;
    const double *values = NULL;
    int           n = 0;
    ch_status     rc;

    ch__logs_drop(out);
    snprintf(leaf, sizeof(leaf), "%s/names", name);
    rc = find(t, leaf, CH_STR, 1, &names);
    snprintf(leaf, sizeof(leaf), "%s/values", name);
    if (rc == CH_OK)
        rc = ch__state_get_numbers(t, leaf, &n, &values);
    to = to < 0 ? n : to;
    if (rc == CH_OK && (ch_tensor_count(names) != n || to > n))
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "\"%s\" of the saved state has %lld names and %d values, want %d or more "
                      "of both; the checkpoint is damaged",
                      name, (long long)ch_tensor_count(names), n, to);
    for (int i = from; i < to && rc == CH_OK; i++)
        rc = set_log(out, ((const ch_str *)ch_tensor_data(names))[i], values[i]);
    return rc;
}

ch_status ch__state_get_logs(const ch_tuple *t, const char *name, ch_logs *out)
{
    return ch__state_get_logs_in(t, name, 0, -1, out);
}

/* Returns the name of a leaf inside the tuple `name`: "best" for "<name>/best", "" for
 * "<name>"; NULL if the leaf is not of that tuple. */
static const char *name_inside(const char *leaf, const char *name)
{
    size_t n = strlen(name);

    if (leaf == NULL || strncmp(leaf, name, n) != 0 || (leaf[n] != '/' && leaf[n] != '\0'))
        return NULL;
    return leaf[n] == '/' ? leaf + n + 1 : leaf + n;
}

ch_status ch__state_get_tuple(const ch_tuple *t, const char *name, ch_tuple **out)
{
    int          count = ch_tuple_count(t), n = 0;
    ch_value   **value = ch__calloc((size_t)count + 1, sizeof(ch_value *));
    const char **names = ch__calloc((size_t)count + 1, sizeof(char *));
    ch_status    rc = value == NULL || names == NULL ? ch__fail_memory("a state") : CH_OK;

    *out = NULL;
    for (int i = 0; i < count && rc == CH_OK; i++) {
        const char *inside = name_inside(ch_tuple_name(t, i), name);

        if (inside == NULL)
            continue;
        names[n] = inside[0] != '\0' ? inside : NULL;
        value[n++] = ch_tuple_at(t, i);
    }
    if (rc == CH_OK && n > 0)
        rc = ch_tuple_new(n, value, names, out);
    ch__free(value);
    ch__free(names);
    return rc;
}
