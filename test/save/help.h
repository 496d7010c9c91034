/* test/save/help.h -- a small training with everything that a checkpoint holds, under every
 * strategy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SAVE_HELP_H
#define TEST_SAVE_HELP_H

#include "../file/folder.h"
#include "../strategy/help.h"
#include "cohort/checkpoint.h"

static inline void t_ignore_log(const ch_log_record *r, void *arg)
{
    (void)arg;
    (void)r;
}

/* The warnings since t_keep_warnings, one after the other. */
typedef struct t_warnings {
    int  n;
    char text[4096];
} t_warnings;

static inline void t_add_warning(const ch_log_record *r, void *arg)
{
    t_warnings *w = arg;
    size_t      used = strlen(w->text);

    w->n++;
    snprintf(w->text + used, sizeof(w->text) - used, "%s\n", r->text);
}

/* Keeps warnings in *w, which must stay valid until t_show_warnings. */
static inline void t_keep_warnings(t_warnings *w)
{
    *w = (t_warnings){.n = 0};
    ch_log_set_sink(t_add_warning, w, CH_LOG_WARNING);
}

static inline void t_show_warnings(void)
{
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
}

/* Returns the bytes in a row of ch_checkpoint_print_plan. Fails unless it has this number of
 * values; NULL: none. */
static inline int64_t t_plan_row(const char *text, const char *name, const char *number)
{
    const char *at = strstr(text, name);
    char        first[32] = "", second[32] = "";

    assert_non_null(at);
    assert_int_equal(
        sscanf(at + strlen(name), number != NULL ? "%31s%31s" : "%31s", first, second),
        number != NULL ? 2 : 1);
    if (number == NULL)
        return strtoll(first, NULL, 10);
    assert_string_equal(first, number);
    return strtoll(second, NULL, 10);
}

enum { ROWS = 60, WIDTH = 5, CLASSES = 3, BATCH = 12, MOST_BITS = 1 << 16 };

enum {
    DEFAULT,
    ONE_DEVICE,
    MIRRORED_2,
    MIRRORED_3,
    CENTRAL,
    SERVERS,
    SHARDED, /* 3 shards along axis 0, on 2 servers */
    STRATEGIES,
    SHARDED_1 = STRATEGIES /* 3 shards along the last axis, for tables */
};

typedef struct t_job {
    int               kind; /* DEFAULT, ... */
    ch_local_cluster *cluster;
    ch_strategy      *st;
    ch_model         *model;
    ch_optimizer     *optimizer;
    ch_metric        *loss;
    ch_function      *step;
    ch_dataset       *data;
    ch_iterator      *it;
    ch_checkpoint    *checkpoint;
} t_job;

/* What differs between jobs; all zeros is the usual job. */
typedef struct t_options {
    bool     is_lazy; /* the variables are created by the first step */
    bool     is_half; /* bf16 weights with masters in f32 */
    int      accumulate;
    double   average;
    uint64_t seed;
} t_options;

static inline ch_strategy *t_strategy_of(int kind, ch_local_cluster **cluster)
{
    ch_strategy                *st = NULL;
    ch_parameter_server_options opt = {.partitioner = {.fn = NULL}};

    switch (kind) {
    case DEFAULT:
        return ch_strategy_ref(ch_strategy_current());
    case ONE_DEVICE:
        t_ok(ch_strategy_one_device("GPU:1", &st));
        return st;
    case MIRRORED_2:
    case MIRRORED_3:
        return t_mirrored(kind == MIRRORED_2 ? 2 : 3);
    case CENTRAL:
        return t_central(2);
    default:
        if (kind == SHARDED || kind == SHARDED_1)
            opt.partitioner = ch_partitioner_fixed(3);
        if (kind == SHARDED_1)
            opt.partitioner.axis = -1;
        t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 2}, cluster));
        t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(*cluster), &opt, &st));
        return st;
    }
}

static inline void t_train(ch_step *s, void *arg)
{
    t_job         *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(ch_cast(logits, CH_F32), ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
    ch_metric_update(j->loss, s, NULL, each, NULL);
}

static inline ch_dataset *t_new_data(void)
{
    ch_tensor  *t[2] = {t_noise(ch_shape_of(ROWS, WIDTH), 5), NULL};
    ch_dataset *d;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(ROWS), &t[1]));
    for (int i = 0; i < ROWS; i++)
        ((int32_t *)ch_tensor_data_mut(t[1]))[i] = i * 7 % 11 % CLASSES;
    d = ch_dataset_shuffle(ch_dataset_slices(2, t, NULL), ROWS, NULL);
    d = ch_dataset_batch(ch_dataset_repeat(d, -1), BATCH, NULL);
    /* Without threads: tests that make allocations fail must not hit those of the pipeline. */
    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return d;
}

static inline ch_model *t_new_model(ch_strategy *st, const t_options *o)
{
    ch_layer *layer[] = {ch_layer_dense(8, &(ch_layer_dense_options){.activation = CH_RELU}),
                         ch_layer_dropout(0.3), ch_layer_batch_norm(NULL),
                         ch_layer_dense(CLASSES, NULL)};
    ch_model_options opt = {.n_inputs = o->is_lazy ? 0 : 1,
                            .input = {{CH_F32, ch_shape_of(-1, WIDTH)}},
                            .dtype = o->is_half ? CH_BF16 : CH_F32,
                            .seed = o->seed};
    ch_model        *m = NULL;

    t_ok(ch_model_new(st, ch_layer_sequential("net", 4, layer), &opt, &m));
    return m;
}

/* Makes the objects that every training has, and a checkpoint of all objects. The strategy, model,
 * optimizer and data are there. */
static inline void t_begin_rest(t_job *j)
{
    t_ok(ch_metric_new(j->st, ch_metric_named(ch_metric_mean(), "loss"), &j->loss));
    t_ok(ch_function_new("train", t_train, j, &j->step));
    if (j->kind < SERVERS)
        t_ok(ch_strategy_distribute_dataset(j->st, j->data, NULL, &j->it));
    else
        t_ok(ch_iterator_new(j->data, NULL, &j->it));
    t_ok(ch_checkpoint_new(&j->checkpoint));
    t_ok(ch_checkpoint_add_model(j->checkpoint, "model", j->model));
    t_ok(ch_checkpoint_add_optimizer(j->checkpoint, "optimizer", j->optimizer));
    t_ok(ch_checkpoint_add_metric(j->checkpoint, "loss", j->loss));
    t_ok(ch_checkpoint_add_function(j->checkpoint, "step", j->step));
    t_ok(ch_checkpoint_add_iterator(j->checkpoint, "data", j->it));
}

/* Makes new objects, as a program does when it is started. */
static inline void t_begin(t_job *j, int kind, const t_options *opt)
{
    const t_options none = {.seed = 0};

    opt = opt != NULL ? opt : &none;
    *j = (t_job){.kind = kind};
    j->st = t_strategy_of(kind, &j->cluster);
    j->model = t_new_model(j->st, opt);
    t_ok(ch_optimizer_adam(
        0.01, NULL,
        &(ch_optimizer_options){.accumulate = opt->accumulate, .average = opt->average},
        &j->optimizer));
    j->data = t_new_data();
    t_begin_rest(j);
}

static inline void t_steps(t_job *j, int n)
{
    for (int i = 0; i < n; i++) {
        ch_tuple *batch = NULL;

        t_ok(ch_iterator_next(j->it, &batch));
        t_ok(ch_strategy_run(j->st, j->step, batch, NULL));
        ch_tuple_unref(batch);
    }
}

static inline void t_end(t_job *j)
{
    ch_checkpoint_unref(j->checkpoint);
    ch_iterator_unref(j->it);
    ch_dataset_unref(j->data);
    ch_function_unref(j->step);
    ch_metric_unref(j->loss);
    ch_optimizer_unref(j->optimizer);
    ch_model_unref(j->model);
    ch_strategy_unref(j->st);
    ch_local_cluster_unref(j->cluster);
}

/* The bits of all variables of a job, one after the other. */
typedef struct t_bits {
    size_t n;
    char   at[MOST_BITS];
} t_bits;

static inline void t_add_bits(t_bits *b, ch_var *v)
{
    ch_tensor *t = NULL;

    t_ok(ch_var_get(v, &t));
    assert_true(b->n + ch_tensor_bytes(t) <= sizeof(b->at));
    memcpy(b->at + b->n, ch_tensor_data(t), ch_tensor_bytes(t));
    b->n += ch_tensor_bytes(t);
    ch_tensor_unref(t);
}

/* Collects the weights, the slots of each weight in the order of their names, and the metric. */
static inline void t_read_bits(t_job *j, t_bits *b)
{
    static const char *const slot[] = {"m", "v", "master", "average"};
    ch_var *const           *var;
    int                      n = ch_model_vars(j->model, &var);
    int64_t                  iterations = 0;
    double                   loss = 0;

    b->n = 0;
    for (int i = 0; i < n; i++) {
        t_add_bits(b, var[i]);
        for (int k = 0; k < 4; k++)
            if (ch_optimizer_slot(j->optimizer, var[i], slot[k]) != NULL)
                t_add_bits(b, ch_optimizer_slot(j->optimizer, var[i], slot[k]));
    }
    t_ok(ch_optimizer_iterations(j->optimizer, &iterations));
    t_ok(ch_metric_result(j->loss, &loss));
    memcpy(b->at + b->n, &iterations, sizeof(iterations));
    memcpy(b->at + b->n + sizeof(iterations), &loss, sizeof(loss));
    b->n += sizeof(iterations) + sizeof(loss);
}

static inline void t_same_bits(const t_bits *a, const t_bits *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        if (a->at[i] != b->at[i])
            fail_msg("byte %zu of %zu differs", i, a->n);
}

#endif
