/* test/save/table.h -- a training with an embedding table, and the comparison of checkpoints.
 *
 * The rows that a step changes are known from the ids that the test feeds. A delta with its base
 * must equal a full checkpoint that was written at the same moment.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SAVE_TABLE_H
#define TEST_SAVE_TABLE_H

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "help.h"

/* ---- comparing checkpoints ---- */

static inline ch_ckpt *t_open_ckpt(const char *path)
{
    ch_ckpt *c = NULL;

    t_ok(ch__ckpt_open(path, &c));
    for (int i = 0; i < ch__ckpt_count(c); i++)
        t_ok(ch__ckpt_verify(c, i));
    return c;
}

static inline void t_same_strings(ch_ckpt *a, ch_ckpt *b, const ch_ckpt_entry *e)
{
    ch_str *x = NULL, *y = NULL;

    t_ok(ch__ckpt_read_strings(a, e->name, &x));
    t_ok(ch__ckpt_read_strings(b, e->name, &y));
    for (int64_t i = 0; i < ch_shape_count(e->shape); i++)
        if (x[i].size != y[i].size || memcmp(x[i].data, y[i].data, x[i].size) != 0)
            fail_msg("%s differs", e->name);
    ch__free(x);
    ch__free(y);
}

static inline void t_same_numbers(ch_ckpt *a, ch_ckpt *b, const ch_ckpt_entry *e)
{
    size_t n = (size_t)ch__ckpt_bytes(e->dtype, e->shape);
    char  *x = ch__malloc(n + 1), *y = ch__malloc(n + 1);

    t_ok(ch__ckpt_read(a, e->name, NULL, x));
    t_ok(ch__ckpt_read(b, e->name, NULL, y));
    if (memcmp(x, y, n) != 0)
        fail_msg("%s differs", e->name);
    ch__free(x);
    ch__free(y);
}

/* Checks that two checkpoints have the same tensors, except the metadata. */
static inline void t_same_checkpoints(const char *one, const char *other)
{
    ch_ckpt *a = t_open_ckpt(one), *b = t_open_ckpt(other);

    assert_int_equal(ch__ckpt_count(a), ch__ckpt_count(b));
    for (int i = 0; i < ch__ckpt_count(a); i++) {
        ch_ckpt_entry e, f;

        ch__ckpt_entry(a, i, &e);
        ch__ckpt_entry(b, i, &f);
        assert_string_equal(e.name, f.name);
        assert_int_equal(e.dtype, f.dtype);
        assert_true(ch_shape_equal(e.shape, f.shape));
        if (e.dtype != CH_STR)
            t_same_numbers(a, b, &e);
        else if (strcmp(e.name, CH_CKPT_METADATA_KEY) != 0)
            t_same_strings(a, b, &e);
    }
    ch__ckpt_close(a);
    ch__ckpt_close(b);
}

/* Returns the number of the base of a checkpoint "<path>-<number>"; 0: it is full. */
static inline int t_base_of(const char *path)
{
    ch_ckpt_metadata m = {.id = 0};
    int              number = 0;

    t_ok(ch__ckpt_load_metadata(path, &m));
    assert_true(m.id != 0 && m.format == CH_CKPT_FORMAT);
    if (m.base != NULL)
        number = (int)strtol(strrchr(m.base, '-') + 1, NULL, 10);
    ch__free(m.memory);
    return number;
}

/* Saves with a manager, and returns the path. Valid until the next save. */
static inline const char *t_save(ch_checkpoint_manager *m, ch_checkpoint *c)
{
    const char *path = NULL;

    t_ok(ch_checkpoint_manager_save(m, true, &path));
    t_ok(ch_checkpoint_wait(c));
    return path;
}

/* ---- a training with a table ---- */

enum { IDS_PER_ROW = 2, BATCHES = 40, MOST_TABLE = 20000 };

typedef struct t_table_job {
    t_job job;
    int   rows, width, batch; /* of the table; rows of a batch */
    bool  is_changed[MOST_TABLE];
    int   n_steps;
} t_table_job;

/* Returns the i-th id of the data, which are repeated. Some ids are frequent, most are not. */
static inline int t_id_at(const t_table_job *x, int64_t i)
{
    uint32_t h = (uint32_t)(i % (BATCHES * x->batch * IDS_PER_ROW)) * 2654435761u;

    return (int)(h >> 8) % (h % 3 == 0 ? 10 : x->rows);
}

static inline ch_dataset *t_table_data(const t_table_job *x)
{
    int         n = BATCHES * x->batch;
    ch_tensor  *t[2] = {NULL, NULL};
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(n, IDS_PER_ROW), &t[0]));
    t_ok(ch_tensor_new(CH_I32, ch_shape_of(n), &t[1]));
    for (int64_t i = 0; i < (int64_t)n * IDS_PER_ROW; i++)
        ((int32_t *)ch_tensor_data_mut(t[0]))[i] = t_id_at(x, i);
    for (int i = 0; i < n; i++)
        ((int32_t *)ch_tensor_data_mut(t[1]))[i] = i * 7 % 11 % CLASSES;
    d = ch_dataset_repeat(ch_dataset_slices(2, t, NULL), -1);
    d = ch_dataset_batch(d, x->batch, NULL);
    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return d;
}

/* Begins a training. x->rows, x->width and x->batch are set. */
static inline void t_begin_table(t_table_job *x, int kind, bool is_adam)
{
    t_job           *j = &x->job;
    ch_layer        *layer[] = {ch_layer_embedding(x->rows, x->width, NULL), ch_layer_flatten(),
                                ch_layer_dense(4, &(ch_layer_dense_options){.activation = CH_RELU}),
                                ch_layer_dense(CLASSES, NULL)};
    ch_model_options opt = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, IDS_PER_ROW)}}};

    *j = (t_job){.kind = kind};
    memset(x->is_changed, 0, sizeof(x->is_changed));
    x->n_steps = 0;
    j->st = t_strategy_of(kind, &j->cluster);
    t_ok(ch_model_new(j->st, ch_layer_sequential("net", 4, layer), &opt, &j->model));
    if (is_adam)
        t_ok(ch_optimizer_adam(0.01, NULL, NULL, &j->optimizer));
    else
        t_ok(ch_optimizer_adagrad(0.1, &(ch_optimizer_adagrad_options){.row_wise = true}, NULL,
                                  &j->optimizer));
    j->data = t_table_data(x);
    t_begin_rest(j);
}

static inline void t_table_steps(t_table_job *x, int n)
{
    t_steps(&x->job, n);
    for (int64_t i = 0; i < (int64_t)n * x->batch * IDS_PER_ROW; i++)
        x->is_changed[t_id_at(x, (int64_t)x->n_steps * x->batch * IDS_PER_ROW + i)] = true;
    x->n_steps += n;
}

/* Writes a full checkpoint, which must not disturb the manager's deltas, and compares. */
static inline void t_check_delta(t_table_job *x, const char *path)
{
    t_ok(ch_checkpoint_write(
        x->job.checkpoint, t_path("full"),
        &(ch_write_options){.wait = true, .sync = CH_OFF, .replace = true}));
    t_same_checkpoints(path, t_path("full"));
}

#endif
