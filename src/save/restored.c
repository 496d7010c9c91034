/* save/restored.c -- the result of a restore: waiting values, assertions, the report.
 *
 * The registry of strategy/waiting.h asks find() for the value of each variable that a layer or
 * an optimizer creates. Assertions and the report match the objects as they are now with the
 * file again (struct difference), because variables may have been created since the restore.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/restored.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/metadata.h"
#include "tensor/print.h"
#include "train/parts.h"

enum { MOST_NAMES = 8 }; /* names that an error or a warning lists */

bool ch__restored_is_internal(const char *name)
{
    return strcmp(name, CH_OBJECT_GRAPH_KEY) == 0 || strcmp(name, CH_CKPT_METADATA_KEY) == 0;
}

/* ---- values that wait ---- */

static ch_status read_value(void *arg, const ch_region *region, void *to)
{
    const ch_restored_value *v = arg;
    ch_ckpt_entry            e;

    ch__ckpt_entry(v->restored->file, v->entry, &e);
    return ch__ckpt_read(v->restored->file, e.name, region, to);
}

ch_value_source ch__restored_source(ch_restored *r, int entry)
{
    ch_ckpt_entry e;

    ch__ckpt_entry(r->file, entry, &e);
    return (ch_value_source){.name = e.name,
                             .dtype = e.dtype,
                             .shape = e.shape,
                             .read = read_value,
                             .arg = &r->value[entry]};
}

typedef struct search {
    const ch_var *var;
    const char   *name; /* of the variable in its layer; NULL: it is not there */
} search;

static bool compare_weight(void *arg, ch_var *of, const char *name, ch_var *v)
{
    search *s = arg;

    if (of == NULL && v == s->var)
        s->name = name;
    return s->name == NULL;
}

/* Returns the node of the graph for a variable that exists; -1: none. Looks into the layers,
 * because they may have created the variable after the restore. */
static int node_of_var(const ch_restored *r, const ch_var *v)
{
    for (int i = 0; i < r->n_layers; i++) {
        search s = {v, NULL};

        ch__layer_visit(r->layer[i].layer, compare_weight, &s);
        if (s.name != NULL)
            return ch__match_child(&r->match, r->layer[i].node, s.name);
    }
    return ch__match_object(&r->match, v);
}

static bool find(void *arg, const void *object, ch_var *of, const char *name,
                 ch_value_source *out)
{
    ch_restored *r = arg;
    int          node = ch__match_object(&r->match, object), entry = -1;

    if (node >= 0 && of == NULL) {
        node = ch__match_child(&r->match, node, name);
    } else if (node >= 0) {
        int var = node_of_var(r, of);

        node = var >= 0 ? ch__match_slot(&r->match, node, var, name) : -1;
    }
    if (node >= 0)
        entry = ch__match_value(&r->match, node, CH_ATTRIBUTE_VALUE);
    if (entry >= 0)
        *out = ch__restored_source(r, entry);
    return entry >= 0;
}

static void drop_restored(void *arg)
{
    ch_restored *r = arg;

    ch__match_drop(&r->match);
    ch__ckpt_close(r->file);
    ch__free(r->layer);
    ch__free(r->value);
    ch__free(r->prefix);
    if (r->owns_checkpoint)
        ch_checkpoint_unref(r->checkpoint);
    ch__free(r);
}

static const ch_waiting_ops waiting = {.find = find, .free = drop_restored};

ch_status ch__restored_wait(ch_restored *r)
{
    for (int i = 0; i < ch__ckpt_count(r->file); i++) {
        ch_ckpt_entry e;

        ch__ckpt_entry(r->file, i, &e);
        if (!r->match.is_used[i] && !ch__restored_is_internal(e.name))
            return ch__waiting_add(&waiting, r, &r->pending);
    }
    return CH_OK;
}

/* ---- the report ---- */

/* Returns the number of insertions, deletions and replacements that turn one text into another;
 * `most` if it is `most` or more, or if a text is too long to compare. */
static int distance(const char *a, const char *b, int most)
{
    enum { LONGEST = 255 };
    int    row[LONGEST + 1];
    size_t n = strlen(a), m = strlen(b);

    if (n > LONGEST || m > LONGEST || (n > m ? n - m : m - n) >= (size_t)most)
        return most;
    for (size_t k = 0; k <= m; k++)
        row[k] = (int)k;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0], least = row[0] = (int)i;

        for (size_t k = 1; k <= m; k++) {
            int replaced = diagonal + (a[i - 1] != b[k - 1]);
            int inserted = 1 + (row[k - 1] < row[k] ? row[k - 1] : row[k]);

            diagonal = row[k];
            row[k] = replaced < inserted ? replaced : inserted;
            least = row[k] < least ? row[k] : least;
        }
        if (least >= most)
            return most;
    }
    return row[m] < most ? row[m] : most;
}

/* The names of a report: values of the program that have no value in the checkpoint, and values
 * of the checkpoint that no object has. */
typedef struct difference {
    ch_tree      tree;
    int          n_missing, n_left;
    const char **missing, **left; /* keys; borrowed from the tree and the file */
    int          n_matched;       /* values that have an object, without the counter of saves */
} difference;

static void drop_difference(difference *d)
{
    ch__tree_drop(&d->tree);
    ch__free(d->missing);
    ch__free(d->left);
}

/* Compares the objects as they are now with the checkpoint. Variables that were created since
 * the restore count if edges lead to them, because they got their values then. The caller must
 * drop the result, also on an error. */
static ch_status compare(ch_restored *r, difference *out)
{
    ch_checkpoint *c = r->checkpoint;
    int            n = ch__ckpt_count(r->file);
    ch_match       now = {.file = NULL};
    ch_status      rc;

    *out = (difference){.n_missing = 0};
    rc = ch__tree_build(c->n_added, c->added, &c->counter, &out->tree);
    if (rc == CH_OK)
        rc = ch__match_make(r->file, &out->tree, r->match.is_used, &now);
    if (rc == CH_OK) {
        out->missing = ch__malloc(((size_t)out->tree.n_values + 1) * sizeof(*out->missing));
        out->left = ch__malloc(((size_t)n + 1) * sizeof(*out->left));
        if (out->missing == NULL || out->left == NULL)
            rc = ch__fail_memory("the report of a restore");
    }
    for (int i = 0; i < out->tree.n_values && rc == CH_OK; i++)
        if (now.entry_of[i] < 0)
            out->missing[out->n_missing++] = out->tree.value[i].key;
    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_ckpt_entry e;

        ch__ckpt_entry(r->file, i, &e);
        if (ch__restored_is_internal(e.name))
            continue;
        if (!now.is_used[i] && !r->match.is_used[i])
            out->left[out->n_left++] = e.name;
        else if (strcmp(e.name, CH_COUNTER_NAME "/.ATTRIBUTES/" CH_ATTRIBUTE_VALUE) != 0)
            out->n_matched++;
    }
    ch__match_drop(&now);
    return rc;
}

/* Prints names, each with the nearest of the other list, if one is near. */
static void print_names(ch_text *o, const char *separator, int n, const char *const *name,
                        int n_others, const char *const *other)
{
    for (int i = 0; i < n; i++) {
        int nearest = -1, least = (int)strlen(name[i]) / 3 + 1;

        for (int k = 0; k < n_others; k++) {
            int d = distance(name[i], other[k], least);

            if (d < least) {
                least = d;
                nearest = k;
            }
        }
        ch__text_add(o, "%s%s", i > 0 ? separator : "", name[i]);
        if (nearest >= 0)
            ch__text_add(o, " (nearest: %s)", other[nearest]);
    }
}

static int fewer(int n)
{
    return n < MOST_NAMES ? n : MOST_NAMES;
}

/* Fails because of n values. `one` and `many` state the problem of a single value and of
 * several. */
static ch_status fail_assert(const ch_restored *r, const char *one, const char *many, int n,
                             const char *const *name, int n_others, const char *const *other)
{
    char    text[CH_FAULT_TEXT];
    ch_text o = ch__text(text, sizeof(text));

    print_names(&o, ", ", fewer(n), name, n_others, other);
    return ch__fail(CH_FAILED_PRECONDITION, "restore of %s: %d %s: %s%s", r->prefix, n,
                    n == 1 ? one : many, text, n > MOST_NAMES ? ", ..." : "");
}

/* Checks what the assertions promise. */
static ch_status check(ch_restored *r, bool existing, bool all_used, bool nontrivial)
{
    difference d;
    ch_status  rc;

    if (r == NULL)
        return ch__check_not_null("restored", "the result of the restore", r, NULL, NULL);
    rc = compare(r, &d);
    if (rc == CH_OK && existing && d.n_missing > 0)
        rc = fail_assert(r, "variable has no value in the checkpoint",
                         "variables have no value in the checkpoint", d.n_missing, d.missing,
                         d.n_left, d.left);
    if (rc == CH_OK && all_used && d.n_left > 0)
        rc = fail_assert(r, "value of the checkpoint has no object",
                         "values of the checkpoint have no object", d.n_left, d.left,
                         d.n_missing, d.missing);
    if (rc == CH_OK && nontrivial && d.n_matched == 0)
        rc = fail_assert(r, "value of the checkpoint, and no object has it",
                         "values of the checkpoint, and no object has any of them", d.n_left,
                         d.left, d.n_missing, d.missing);
    drop_difference(&d);
    return rc;
}

ch_status ch_restored_assert_consumed(ch_restored *r)
{
    return check(r, true, true, false);
}

ch_status ch_restored_assert_existing(ch_restored *r)
{
    return check(r, true, false, false);
}

ch_status ch_restored_assert_nontrivial(ch_restored *r)
{
    return check(r, false, false, true);
}

ch_restored *ch_restored_expect_partial(ch_restored *r)
{
    if (r != NULL)
        r->expects_partial = true;
    return r;
}

int ch_restored_print(ch_restored *r, char *text, size_t size)
{
    ch_text    o = ch__text(text, size);
    difference d = {.n_missing = 0};

    if (r == NULL) {
        ch__text_add(&o, "NULL");
    } else if (compare(r, &d) != CH_OK) {
        ch__text_add(&o, "%s: %s", r->prefix, ch_error_message());
    } else {
        ch__text_add(&o, "%s: %d value%s an object\n", r->prefix, d.n_matched,
                     d.n_matched == 1 ? " has" : "s have");
        ch__text_add(&o, "missing in the checkpoint: %d%s", d.n_missing,
                     d.n_missing > 0 ? "\n  " : "");
        print_names(&o, "\n  ", d.n_missing, d.missing, d.n_left, d.left);
        ch__text_add(&o, "\nleft over in the checkpoint: %d%s", d.n_left,
                     d.n_left > 0 ? "\n  " : "");
        print_names(&o, "\n  ", d.n_left, d.left, d.n_missing, d.missing);
        ch__text_add(&o, "\n");
    }
    drop_difference(&d);
    return ch__text_length(&o);
}

/* ---- life ---- */

/* Logs the values that no object has used, unless that was expected (CK-11). */
static void log_unused(ch_restored *r)
{
    difference d = {.n_missing = 0};
    char       text[CH_FAULT_TEXT];
    ch_text    o = ch__text(text, sizeof(text));

    if (!r->expects_partial && ch__log_is_enabled(CH_LOG_WARNING) && compare(r, &d) == CH_OK &&
        d.n_left > 0) {
        print_names(&o, ", ", fewer(d.n_left), d.left, d.n_missing, d.missing);
        ch__log(CH_LOG_WARNING, "checkpoint",
                "restore of %s: %d value%s not used: %s%s (ch_restored_expect_partial turns "
                "this warning off)",
                r->prefix, d.n_left, d.n_left == 1 ? " was" : "s were", text,
                d.n_left > MOST_NAMES ? ", ..." : "");
    }
    drop_difference(&d);
}

ch_restored *ch_restored_ref(ch_restored *r)
{
    if (r != NULL)
        atomic_fetch_add(&r->refs, 1);
    return r;
}

void ch_restored_unref(ch_restored *r)
{
    if (r == NULL || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->is_complete)
        log_unused(r);
    if (r->pending != NULL)
        ch__waiting_remove(r->pending); /* calls drop_restored */
    else
        drop_restored(r);
}
