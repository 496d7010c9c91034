/* train/layer.c -- the layer object: a tree of named layers that own variables.
 *
 * The parts of the file: errors of constructors, names, creation and variables. layer_call.c
 * has the calls; the constructors of layers_*.c and programs create layers. Invariants:
 *
 *   1. The children of a layer have different names. The path of a variable follows the first
 *      parent of each layer.
 *   2. A variable of a layer is created with the value of a restore, if one waits for it under
 *      the name that ch__layer_visit gives (strategy/waiting.h).
 *   3. A constructor that fails returns NULL and records its error for the thread, so that
 *      ch_layer_call or ch_model_new of the NULL layer can report the cause.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/layer.h"

#include "cohort/replica.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "strategy/waiting.h"
#include "train/parts.h"

/* ---- errors of constructors ---- */

/* The last error of a constructor on this thread. It is cleared when it is reported, when a
 * layer is called successfully, and when a model is made. Creating another layer does not clear
 * it, because the failed layer may be in the same list of children. The message is copied,
 * because other errors may replace it meanwhile. */
static _Thread_local struct {
    ch_status rc; /* CH_OK: there is no error */
    char      text[CH_FAULT_TEXT];
} last_error;

static ch_layer *record_error(ch_status rc)
{
    last_error.rc = rc;
    snprintf(last_error.text, sizeof(last_error.text), "%s", ch_error_message());
    return NULL;
}

ch_status ch__layer_last_error(const char *what)
{
    ch_status rc = last_error.rc;

    last_error.rc = CH_OK;
    return rc != CH_OK ? ch__fail(rc, "%s: %s", what, last_error.text)
                       : ch__fail(CH_INVALID_ARGUMENT, "%s: the layer is NULL", what);
}

void ch__layer_clear_error(void)
{
    last_error.rc = CH_OK;
}

ch_layer *ch__layer_fail(const char *format, ...)
{
    va_list   args;
    ch_status rc;

    va_start(args, format);
    rc = ch__failv(CH_INVALID_ARGUMENT, format, args);
    va_end(args);
    return record_error(rc);
}

static ch_layer *fail_memory(const char *what)
{
    return record_error(ch__fail_memory(what));
}

/* ---- names ---- */

static bool is_name(const char *name)
{
    return name != NULL && name[0] != '\0' && strchr(name, '/') == NULL;
}

/* The names of the children of a layer. The value of a name is the address of its child's entry
 * in `suffix`. */
typedef struct siblings {
    ch_map names;
    int   *suffix; /* the last number that was appended to the name of each child */
} siblings;

/* Gives a child a free name: its own, "dense", or else "dense_1". Returns false if memory is
 * exhausted. */
static bool name_child(siblings *t, ch_layer *c, int *counter)
{
    int   *taken = ch__map_find_name(&t->names, c->name);
    size_t size = strlen(c->name) + 16;
    char  *name;

    if (taken == NULL)
        return ch__map_set_name(&t->names, c->name, counter) == CH_OK;
    name = ch__malloc(size);
    if (name == NULL)
        return false;
    do
        snprintf(name, size, "%s_%d", c->name, ++*taken);
    while (ch__map_find_name(&t->names, name) != NULL);
    ch__free(c->name);
    c->name = name;
    return ch__map_set_name(&t->names, name, counter) == CH_OK;
}

/* Enters the name of a child that already belongs to another layer. Such a child keeps its
 * name, so two different children of this kind must not have the same name. */
static ch_status check_name(siblings *t, const ch_layer *l, int i)
{
    ch_layer *c = l->child[i];
    int      *taken = ch__map_find_name(&t->names, c->name);

    if (taken == NULL)
        return ch__map_set_name(&t->names, c->name, &t->suffix[i]) == CH_OK
                   ? CH_OK
                   : ch__fail_memory(c->name);
    if (l->child[taken - t->suffix] == c)
        return CH_OK;
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s: two of its layers, which belong to other layers too, are named \"%s\"; "
        "rename one of them with ch_layer_named before it is added to a layer",
        l->ops->type, c->name);
}

/* Adds the children to the layer and names them. The layer owns them afterwards, also on an
 * error. */
static ch_status adopt(ch_layer *l, int n, ch_layer *const *child)
{
    siblings  t = {.suffix = ch__calloc((size_t)n + 1, sizeof(*t.suffix))};
    ch_status rc = t.suffix != NULL ? CH_OK : ch__fail_memory(l->ops->type);

    for (int i = 0; i < n; i++)
        l->child[i] = child[i];
    l->n_children = n;
    for (int i = 0; i < n && rc == CH_OK; i++)
        if (child[i]->parent != NULL)
            rc = check_name(&t, l, i);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        if (child[i]->parent != NULL)
            continue;
        child[i]->parent = l;
        if (!name_child(&t, child[i], &t.suffix[i]))
            rc = ch__fail_memory(l->ops->type);
    }
    ch__map_drop(&t.names);
    ch__free(t.suffix);
    return rc;
}

/* Returns the path of a variable of the layer, "net/dense_1/kernel". Returns NULL if memory is
 * exhausted. The caller frees it. */
static char *path_to(const ch_layer *l, const char *name)
{
    size_t size = strlen(name) + 1;
    char  *path, *at;

    for (const ch_layer *p = l; p != NULL; p = p->parent)
        size += strlen(p->name) + 1;
    path = ch__malloc(size);
    if (path == NULL)
        return NULL;
    at = path + size - (strlen(name) + 1);
    memcpy(at, name, strlen(name) + 1);
    for (const ch_layer *p = l; p != NULL; p = p->parent) {
        size_t length = strlen(p->name);

        *--at = '/';
        memcpy(at -= length, p->name, length);
    }
    return path;
}

/* ---- creation ---- */

void ch__layer_drop_weights(ch_layer *l)
{
    for (int i = 0; i < l->n_weights; i++) {
        ch_var_unref(l->weight[i].var);
        ch__free(l->weight[i].name);
    }
    l->n_weights = 0;
}

static void unref_all(int n, ch_layer *const *layer)
{
    for (int i = 0; i < n; i++)
        ch_layer_unref(layer[i]);
}

static void free_layer(ch_layer *l)
{
    for (int i = 0; i < l->n_children; i++)
        if (l->child[i]->parent == l)
            l->child[i]->parent = NULL;
    unref_all(l->n_children, l->child);
    ch__layer_drop_weights(l);
    if (l->ops->drop != NULL)
        l->ops->drop(l->self);
    ch__free(l->weight);
    ch__free(l->child);
    ch__free(l->list[0]);
    ch__free(l->list[1]);
    ch__free(l->name);
    ch__free(l);
}

static ch_layer *new_layer(const ch_layer_ops *ops, const void *self, size_t self_bytes, int n)
{
    ch_layer *l = ch__calloc(1, sizeof(*l) + self_bytes + 1);

    if (l == NULL)
        return NULL;
    atomic_init(&l->refs, 1);
    l->ops = ops;
    if (self_bytes > 0)
        memcpy(l->self, self, self_bytes);
    l->name = ch__strdup(ops->type);
    l->child = ch__calloc((size_t)n + 1, sizeof(ch_layer *));
    if (l->name != NULL && l->child != NULL)
        return l;
    ch__free(l->name);
    ch__free(l->child);
    ch__free(l);
    return NULL;
}

/* Table of a layer that must be freed without `drop`. */
static const ch_layer_ops no_ops = {.type = "none"};

static ch_layer *make(const ch_layer_ops *ops, const void *self, size_t self_bytes, int n,
                      ch_layer *const *child)
{
    ch_layer *l = NULL;
    bool      has_all = true;
    ch_status rc;

    for (int i = 0; i < n; i++) {
        has_all &= child[i] != NULL;
        /* If an error is recorded already, it is that of the constructor of the child. */
        if (child[i] == NULL && last_error.rc == CH_OK)
            (void)ch__layer_fail("%s: layer %d of %d is NULL", ops->type, i, n);
    }
    if (has_all && (l = new_layer(ops, self, self_bytes, n)) == NULL)
        (void)fail_memory(ops->type);
    if (l == NULL) {
        unref_all(n, child);
        return NULL;
    }
    rc = adopt(l, n, child);
    if (rc == CH_OK)
        return l;
    /* `drop` must not be called: the caller still owns the contents of `self`. */
    l->ops = &no_ops;
    ch_layer_unref(l);
    return record_error(rc);
}

ch_layer *ch__layer_new(const ch_layer_ops *ops, const void *self, size_t self_bytes, int n,
                        ch_layer *const *child)
{
    ch_layer *l = make(ops, self, self_bytes, n, child);

    if (l != NULL)
        l->is_own = true;
    return l;
}

ch_layer *ch_layer_new(const ch_layer_ops *ops, const void *self, size_t self_bytes, int n,
                       ch_layer *const *child)
{
    if (n >= 0 && (n == 0 || child != NULL) && ops != NULL && is_name(ops->type) &&
        ops->call != NULL && (self_bytes == 0 || self != NULL))
        return make(ops, self, self_bytes, n, child);
    unref_all(child != NULL ? n : 0, child);
    return ch__layer_fail(
        "layer: want a type without \"/\", a call, and children and self that are not "
        "NULL if their sizes are above 0");
}

ch_layer *ch_layer_ref(ch_layer *l)
{
    if (l != NULL)
        atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

void ch_layer_unref(ch_layer *l)
{
    if (l != NULL && atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) == 1)
        free_layer(l);
}

ch_layer *ch_layer_named(const char *name, ch_layer *l)
{
    char *copy;

    if (l == NULL)
        return NULL;
    if (!is_name(name) || l->parent != NULL || l->is_built) {
        (void)ch__layer_fail("layer %s: cannot be named \"%s\": %s", l->name,
                             name != NULL ? name : "",
                             !is_name(name) ? "want a name without \"/\""
                             : l->is_built  ? "it has been called already"
                                            : "it belongs to another layer already");
        ch_layer_unref(l);
        return NULL;
    }
    copy = ch__strdup(name);
    if (copy == NULL) {
        ch_layer_unref(l);
        return fail_memory(name);
    }
    ch__free(l->name);
    l->name = copy;
    return l;
}

const char *ch_layer_name(const ch_layer *l)
{
    return l != NULL ? l->name : NULL;
}

const char *ch_layer_type(const ch_layer *l)
{
    return l != NULL ? l->ops->type : NULL;
}

int ch_layer_children(const ch_layer *l, ch_layer *const **out)
{
    if (out != NULL)
        *out = l != NULL ? l->child : NULL;
    return l != NULL ? l->n_children : 0;
}

void ch_layer_set_dtype(ch_layer *l, ch_dtype dtype)
{
    if (l == NULL)
        return;
    if (!l->is_built)
        l->dtype = dtype;
    for (int i = 0; i < l->n_children; i++)
        ch_layer_set_dtype(l->child[i], dtype);
}

void ch_layer_set_seed(ch_layer *l, uint64_t seed)
{
    if (l == NULL)
        return;
    if (!l->is_built)
        l->seed = seed;
    for (int i = 0; i < l->n_children; i++)
        ch_layer_set_seed(l->child[i], seed);
}

/* ---- variables ---- */

ch_init ch__init_or(const ch_init *given, ch_init otherwise)
{
    return given != NULL ? *given : otherwise;
}

static ch_status check_weight(const ch_layer *l, const ch_layer_weight_spec *spec)
{
    if (l == NULL || spec == NULL)
        return ch__check_not_null("layer weight", "the layer", l, "its spec", spec);
    if (l->building == NULL)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "layer %s: variables can be created in its `build` only", l->name);
    if (!is_name(spec->name))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "layer %s: want a name without \"/\" for a variable", l->name);
    for (int i = 0; i < l->n_weights; i++)
        if (strcmp(l->weight[i].name, spec->name) == 0)
            return ch__fail(CH_INVALID_ARGUMENT, "layer %s: two variables are named \"%s\"",
                            l->name, spec->name);
    return CH_OK;
}

ch_status ch_layer_weight(ch_layer *l, const ch_layer_weight_spec *spec, ch_var **out)
{
    ch_var_spec v = {0};
    ch_weight   w = {0};
    char       *path;
    ch_waiting  waiting;
    ch_status   rc = check_weight(l, spec);

    if (rc != CH_OK)
        return rc;
    v.dtype = l->dtype;
    v.shape = spec->shape;
    v.trainable = spec->trainable;
    v.init = ch__init_or(spec->init, ch_init_zeros());
    v.init.seed += l->seed;
    if (spec->f32 && (l->dtype == CH_BF16 || l->dtype == CH_F16))
        v.dtype = CH_F32;
    v.name = path = path_to(l, spec->name);
    w.name = ch__strdup(spec->name);
    if (path == NULL || w.name == NULL ||
        !ch__grow((void **)&l->weight, &l->cap_weights, l->n_weights + 1, sizeof(w)))
        rc = ch__fail_memory(spec->name);
    if (rc == CH_OK) {
        waiting = ch__waiting_find(l, NULL, spec->name);
        rc = ch__waiting_create(&waiting, ch_step_strategy(l->building), &v, NULL, &w.var);
    }
    ch__free(path);
    if (rc != CH_OK) {
        ch__free(w.name);
        return rc;
    }
    l->weight[l->n_weights++] = w;
    if (out != NULL)
        *out = w.var;
    return CH_OK;
}

void ch__layer_visit(const ch_layer *l, ch_part_visit visit, void *arg)
{
    for (int i = 0; i < l->n_weights; i++)
        if (!visit(arg, NULL, l->weight[i].name, l->weight[i].var))
            return;
}

static bool is_listed(ch_var *const *list, int n, const ch_var *v)
{
    for (int i = 0; i < n; i++)
        if (list[i] == v)
            return true;
    return false;
}

/* Appends the variables of l and of its children to the list of `root`, which has n entries.
 * Skips variables that are already listed, because a layer may be shared. Returns the new
 * length; -1 if memory is exhausted. */
static int list_vars(ch_layer *root, const ch_layer *l, bool trainable, int n)
{
    for (int i = 0; i < l->n_weights && n >= 0; i++) {
        ch_var *v = l->weight[i].var;

        if ((trainable && !ch_var_is_trainable(v)) || is_listed(root->list[trainable], n, v))
            continue;
        if (!ch__grow((void **)&root->list[trainable], &root->cap_list[trainable], n + 1,
                      sizeof(v))) {
            (void)ch__fail_memory("a list of variables");
            return -1;
        }
        root->list[trainable][n++] = v;
    }
    for (int i = 0; i < l->n_children && n >= 0; i++)
        n = list_vars(root, l->child[i], trainable, n);
    return n;
}

static int make_list(ch_layer *l, bool trainable, ch_var *const **out)
{
    int n = l != NULL ? list_vars(l, l, trainable, 0) : 0;

    if (out != NULL)
        *out = l != NULL ? l->list[trainable] : NULL;
    return n;
}

int ch_layer_vars(ch_layer *l, ch_var *const **out)
{
    return make_list(l, false, out);
}

int ch_layer_trainable(ch_layer *l, ch_var *const **out)
{
    return make_list(l, true, out);
}

static ch_layer *child_named(const ch_layer *l, const char *name, size_t length)
{
    for (int i = 0; i < l->n_children; i++)
        if (strlen(l->child[i]->name) == length && memcmp(l->child[i]->name, name, length) == 0)
            return l->child[i];
    return NULL;
}

ch_var *ch_layer_var(ch_layer *l, const char *path)
{
    if (path == NULL)
        return NULL;
    for (const char *slash; l != NULL && (slash = strchr(path, '/')) != NULL; path = slash + 1)
        l = child_named(l, path, (size_t)(slash - path));
    for (int i = 0; l != NULL && i < l->n_weights; i++)
        if (strcmp(l->weight[i].name, path) == 0)
            return l->weight[i].var;
    return NULL;
}
