/* train/model.c -- the model: a layer with its strategy.
 *
 * ch_model_new records the forward pass once, into a graph that is discarded, so that the
 * variables of the layer exist afterwards. The rest of the file records calls of the model,
 * lists its variables, and prints it as a table.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/model.h"
#include "cohort/replica.h"

#include <stdarg.h>
#include <string.h>

#include "strategy/strategy.h"
#include "train/layer.h"
#include "train/model.h"

struct ch_model {
    atomic_int   refs;
    ch_strategy *strategy;
    ch_layer    *layer;
    int          n_inputs; /* number of inputs; 0: not known */
    ch_var     **shard;    /* array that ch_model_shards returned last */
    int64_t      n_steps;  /* training steps of ch_fit so far */
    void        *attached; /* data of ch_compile; `drop` frees it */
    void (*drop)(void *attached);
};

/* ---- creation ---- */

static ch_status check_inputs(const ch_layer *root, const ch_model_options *opt)
{
    if (opt->n_inputs < 0 || opt->n_inputs > CH_MODEL_INPUTS)
        return ch__fail(CH_INVALID_ARGUMENT, "model %s: %d inputs, want at most %d", root->name,
                        opt->n_inputs, CH_MODEL_INPUTS);
    for (int i = 0; i < opt->n_inputs; i++) {
        ch_shape s = opt->input[i].shape;
        bool     ok = s.rank >= 0 && s.rank <= CH_MAX_RANK;

        for (int k = 0; ok && k < s.rank; k++)
            ok = s.dim[k] >= 0 || (k == 0 && s.dim[k] == -1);
        if (!ok)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "model %s: input %d: want sizes of 0 or more; axis 0, the rows, may be -1",
                root->name, i);
    }
    return CH_OK;
}

/* Records the forward pass into a graph that is discarded. All inputs have the same number of
 * rows: `rows`, or a symbol if `rows` is negative. Sets *wants_numbers if the recording failed
 * only because the rows are a symbol. */
static ch_status record(ch_strategy *st, ch_layer *root, const ch_model_options *opt,
                        int64_t rows, const void *caller, bool *wants_numbers)
{
    const void *before;
    ch_node    *in[CH_MODEL_INPUTS];
    ch_step    *s = NULL;
    ch_status   rc = ch__step_new(root->name, NULL, &s);

    if (rc != CH_OK)
        return rc;
    s->owner = st;
    s->is_discarded = true;
    s->graph->n_symbols = 1;
    for (int i = 0; i < opt->n_inputs; i++) {
        ch_dims d = {.rank = opt->input[i].shape.rank};

        for (int k = 0; k < d.rank; k++)
            d.dim[k] = ch__dim(opt->input[i].shape.dim[k]);
        if (d.rank > 0 && d.dim[0].n < 0)
            d.dim[0] = rows < 0 ? (ch_dim){1, 1} : ch__dim(rows);
        in[i] = ch__step_add_input(s, NULL, opt->input[i].dtype, &d);
    }
    before = ch__step_begin_at(s, caller, NULL);
    (void)ch_layer_call_n(root, s, opt->n_inputs, in, false);
    ch__step_end(s, before);
    rc = ch_step_status(s);
    *wants_numbers = s->graph->wants_numbers;
    ch__step_free(s);
    return rc;
}

/* Creates the variables of the layer, if the inputs are known. Records with symbolic rows first
 * and, if the layer needs numbers, with one row. */
static ch_status build(ch_strategy *st, ch_layer *root, const ch_model_options *opt,
                       const void *caller)
{
    bool      wants_numbers = false;
    ch_status rc = check_inputs(root, opt);

    if (rc != CH_OK || opt->n_inputs == 0)
        return rc;
    rc = record(st, root, opt, -1, caller, &wants_numbers);
    if (rc != CH_OK && wants_numbers)
        rc = record(st, root, opt, 1, caller, &wants_numbers);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "model %s", root->name);
}

ch_status ch_model_new(ch_strategy *st, ch_layer *root, const ch_model_options *opt,
                       ch_model **out)
{
    ch_model_options none = {0};
    ch_model        *m;
    ch_status        rc;

    if (root == NULL)
        return ch__layer_last_error("model: the layer could not be created");
    ch__layer_clear_error();
    if (out == NULL) {
        ch_layer_unref(root);
        return ch__check_not_null("model", "out", out, NULL, NULL);
    }
    if (opt == NULL)
        opt = &none;
    if (st == NULL)
        st = ch_strategy_current();
    if (opt->dtype != CH_F32)
        ch_layer_set_dtype(root, opt->dtype);
    if (opt->seed != 0)
        ch_layer_set_seed(root, opt->seed);
    m = ch__calloc(1, sizeof(*m));
    rc = m != NULL ? build(st, root, opt, __builtin_return_address(0))
                   : ch__fail_memory("a model");
    if (rc != CH_OK) {
        ch_layer_unref(root);
        ch__free(m);
        return rc;
    }
    atomic_init(&m->refs, 1);
    m->strategy = ch_strategy_ref(st);
    m->layer = root;
    m->n_inputs = opt->n_inputs;
    *out = m;
    return CH_OK;
}

ch_model *ch_model_ref(ch_model *m)
{
    if (m != NULL)
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void ch_model_unref(ch_model *m)
{
    if (m == NULL || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    ch__model_attach(m, NULL, NULL);
    ch_layer_unref(m->layer);
    ch_strategy_unref(m->strategy);
    ch__free(m->shard);
    ch__free(m);
}

int ch__model_inputs(const ch_model *m)
{
    return m->n_inputs;
}

int64_t ch__model_steps(const ch_model *m)
{
    return m->n_steps;
}

void ch__model_set_steps(ch_model *m, int64_t steps)
{
    m->n_steps = steps;
}

void ch__model_attach(ch_model *m, void *attached, void (*drop)(void *attached))
{
    if (m->drop != NULL)
        m->drop(m->attached);
    m->attached = attached;
    m->drop = drop;
}

void *ch__model_attached(const ch_model *m)
{
    return m->attached;
}

/* ---- use ---- */

static ch_status check_call(const ch_model *m, const ch_step *s)
{
    if (m == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "the model is NULL");
    if (s->owner == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "its step calls model \"%s\", which has variables; steps of a dataset "
                        "pipeline must not use variables",
                        m->layer->name);
    if (s->owner == m->strategy)
        return CH_OK;
    if (!m->layer->is_built)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "model %s: it has no variables yet; %s must create them, but this step "
                        "runs under %s; give ch_model_new the inputs, or call the model under "
                        "its strategy first",
                        m->layer->name, ch_strategy_label(m->strategy),
                        ch_strategy_label(s->owner));
    if (ch__strategy_may_read(s->owner, m->strategy))
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "model %s: mixing different strategies: the model belongs to %s, but this step "
        "runs under %s; run the step under the model's strategy",
        m->layer->name, ch_strategy_label(m->strategy), ch_strategy_label(s->owner));
}

static ch_node *call(ch_model *m, ch_step *s, int n, ch_node *const *x, bool training,
                     const void *caller)
{
    const void *before;
    ch_status   rc;
    ch_node    *y;

    if (s == NULL || s->rc != CH_OK)
        return NULL;
    rc = check_call(m, s);
    if (rc != CH_OK) {
        ch__step_record_error(s, rc, caller);
        return NULL;
    }
    before = ch__step_begin_at(s, caller, NULL);
    y = ch_layer_call_n(m->layer, s, n, x, training);
    ch__step_end(s, before);
    return y;
}

ch_node *ch_model_call(ch_model *m, ch_step *s, ch_node *x, bool training)
{
    return call(m, s, 1, &x, training, __builtin_return_address(0));
}

ch_node *ch_model_call_n(ch_model *m, ch_step *s, int n, ch_node *const *x, bool training)
{
    return call(m, s, n, x, training, __builtin_return_address(0));
}

ch_layer *ch_model_layer(const ch_model *m)
{
    return m != NULL ? m->layer : NULL;
}

ch_strategy *ch_model_strategy(const ch_model *m)
{
    return m != NULL ? m->strategy : NULL;
}

int ch_model_vars(ch_model *m, ch_var *const **out)
{
    return ch_layer_vars(ch_model_layer(m), out);
}

int ch_model_trainable(ch_model *m, ch_var *const **out)
{
    return ch_layer_trainable(ch_model_layer(m), out);
}

int ch_model_shards(ch_model *m, ch_var *const **out)
{
    ch_var *const *var = NULL;
    int            n_vars = ch_model_vars(m, &var), n = 0;

    for (int i = 0; i < n_vars; i++)
        n += ch_var_shards(var[i]);
    if (out != NULL)
        *out = NULL;
    if (n_vars < 0 || m == NULL || out == NULL)
        return n_vars < 0 ? n_vars : n;
    ch__free(m->shard);
    m->shard = ch__calloc((size_t)n + 1, sizeof(ch_var *));
    if (m->shard == NULL) {
        (void)ch__fail_memory("model shards");
        return -1;
    }
    n = 0;
    for (int i = 0; i < n_vars; i++)
        for (int k = 0; k < ch_var_shards(var[i]); k++)
            m->shard[n++] = ch_var_shard(var[i], k);
    *out = m->shard;
    return n;
}

/* ---- printing ---- */

typedef struct table {
    char  *text;
    size_t size, used;
    int    name_width, out_width; /* widths of the first two columns */
} table;

enum { COUNT_WIDTH = 14, CELL_BYTES = 192 };

static void put(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(table *t, const char *format, ...)
{
    size_t  room = t->text != NULL && t->used < t->size ? t->size - t->used : 0;
    va_list args;

    va_start(args, format);
    t->used += (size_t)vsnprintf(room > 0 ? t->text + t->used : NULL, room, format, args);
    va_end(args);
}

/* Writes 1234567 as "1,234,567". */
static const char *grouped(int64_t n, char text[32])
{
    char digits[24];
    int  length = snprintf(digits, sizeof(digits), "%lld", (long long)n), at = 0;

    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

/* Writes a size with decimal units: "203.6 KB". */
static const char *sized(int64_t bytes, char text[32])
{
    static const char *const unit[] = {"bytes", "KB", "MB", "GB", "TB"};
    double                   x = (double)bytes;
    int                      k = 0;

    for (; x >= 999.95 && k < 4; k++)
        x /= 1000;
    snprintf(text, 32, k == 0 ? "%.0f %s" : "%.1f %s", x, unit[k]);
    return text;
}

static void name_cell(const ch_layer *l, int depth, char cell[CELL_BYTES])
{
    snprintf(cell, CELL_BYTES, "%*s%s (%s)", 2 * depth, "", l->name, l->ops->type);
}

static void out_cell(const ch_layer *l, char cell[CELL_BYTES])
{
    if (l->was_called)
        ch_tensor_spec_print(&l->out, cell, CELL_BYTES);
    else
        snprintf(cell, CELL_BYTES, "not called yet");
}

static int at_least(int have, const char *cell)
{
    int length = (int)strlen(cell);

    return length > have ? length : have;
}

/* Computes the widths of the columns. */
static void measure(table *t, const ch_layer *l, int depth)
{
    char cell[CELL_BYTES];

    name_cell(l, depth, cell);
    t->name_width = at_least(t->name_width, cell);
    out_cell(l, cell);
    t->out_width = at_least(t->out_width, cell);
    for (int i = 0; i < l->n_children; i++)
        measure(t, l->child[i], depth + 1);
}

typedef struct sums {
    int64_t count, bytes;
} sums;

static sums sum_vars(int n, ch_var *const *v)
{
    sums s = {0};

    for (int i = 0; i < n; i++) {
        int64_t count = ch_shape_count(ch_var_shape(v[i]));

        s.count += count;
        s.bytes += count * (int64_t)ch_dtype_bytes(ch_var_dtype(v[i]));
    }
    return s;
}

static void put_rows(table *t, ch_layer *l, int depth)
{
    char           name[CELL_BYTES], out[CELL_BYTES], count[32];
    ch_var *const *v;
    int            n = ch_layer_vars(l, &v);

    name_cell(l, depth, name);
    out_cell(l, out);
    put(t, "%-*s  %-*s  %*s\n", t->name_width, name, t->out_width, out, COUNT_WIDTH,
        grouped(sum_vars(n, v).count, count));
    for (int i = 0; i < l->n_children; i++)
        put_rows(t, l->child[i], depth + 1);
}

static void put_line(table *t)
{
    for (int i = 0; i < t->name_width + t->out_width + COUNT_WIDTH + 4; i++)
        put(t, "-");
    put(t, "\n");
}

static void put_sum(table *t, const char *title, sums s)
{
    char count[32], bytes[32];

    put(t, "%-13s  %*s  %12s\n", title, COUNT_WIDTH, grouped(s.count, count),
        sized(s.bytes, bytes));
}

int ch_model_print(ch_model *m, char *text, size_t size)
{
    table          t = {.text = text, .size = size};
    ch_var *const *v;
    sums           all, trained;
    int            n;

    if (m == NULL) {
        put(&t, "NULL");
        return (int)t.used;
    }
    t.name_width = at_least(0, "Layer (type)");
    t.out_width = at_least(0, "Output");
    measure(&t, m->layer, 0);
    put(&t, "%-*s  %-*s  %*s\n", t.name_width, "Layer (type)", t.out_width, "Output",
        COUNT_WIDTH, "Parameters");
    put_line(&t);
    put_rows(&t, m->layer, 0);
    put_line(&t);
    n = ch_layer_vars(m->layer, &v);
    all = sum_vars(n, v);
    n = ch_layer_trainable(m->layer, &v);
    trained = sum_vars(n, v);
    put_sum(&t, "Parameters", all);
    put_sum(&t, "Trainable", trained);
    put_sum(&t, "Not trainable", (sums){all.count - trained.count, all.bytes - trained.bytes});
    return (int)t.used;
}
