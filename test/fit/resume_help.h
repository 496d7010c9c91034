/* test/fit/resume_help.h -- programs that train, for tests that kill them.
 *
 * A `job` describes a training. An `outcome` is what its program leaves: weights, history and log
 * files, as text with all bits of the numbers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FIT_RESUME_HELP_H
#define TEST_FIT_RESUME_HELP_H

#include "fit_help.h"

#include "../file/folder.h"

enum { TEXT = 1 << 16 };

typedef struct job {
    int     strategy;
    int     epochs;
    bool    is_custom;       /* with a custom step, which has an output */
    bool    is_evaluating;   /* ch_train_and_evaluate */
    bool    is_dataset;      /* a dataset whose length is not known; else arrays */
    bool    is_validated;    /* with shuffled validation data */
    int64_t steps_per_epoch; /* 0: a pass over the data */
    int     accumulate;
    int     patience; /* of early stopping; 0: no early stopping */
} job;

static inline void custom(ch_step *s, ch_model *m, void *arg)
{
    ch_node *y = ch_model_call(m, s, ch_step_in(s, 0), true);
    ch_node *loss = ch_loss_average(ch_loss_sparse_categorical(y, ch_step_in(s, 1)), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);

    ch_optimizer_minimize(arg, s, loss, n, var);
    ch_step_out(s, "mine", ch_all_reduce(CH_SUM, loss));
}

static inline ch_model *new_network(const job *j, ch_strategy *st)
{
    ch_model     *m = NULL;
    ch_optimizer *o = NULL;

    t_ok(ch_model_new(
        st,
        ch_layer_sequential(
            "net", 3,
            (ch_layer *[]){ch_layer_dense(7, &(ch_layer_dense_options){.activation = CH_TANH}),
                           ch_layer_dropout(0.25), ch_layer_dense(CLASSES, NULL)}),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, WIDTH)}}}, &m));
    t_ok(ch_optimizer_adam(0.01, NULL, &(ch_optimizer_options){.accumulate = j->accumulate},
                           &o));
    t_ok(ch_compile(m, &(ch_compile_options){.optimizer = o,
                                             .loss = ch_loss_sparse_categorical,
                                             .metrics = {ch_metric_sparse_accuracy()},
                                             .train_step = j->is_custom ? custom : NULL,
                                             .step_arg = o}));
    ch_optimizer_unref(o);
    return m;
}

static inline ch_status fit(const job *j, ch_model *m, const arrays *a, const arrays *test,
                            int n, ch_callback **c, ch_history **h)
{
    ch_data        d = {.n = 2, .array = a->t}, v = {.dataset = NULL};
    ch_fit_options o = {.epochs = j->epochs,
                        .batch = BATCH,
                        .steps_per_epoch = j->steps_per_epoch,
                        .n_callbacks = n,
                        .callback = c,
                        .catch_interrupt = true};
    ch_dataset    *train = NULL, *shuffled = NULL;
    ch_status      rc;

    if (j->is_dataset) {
        train = batches(a, 2);
        d = (ch_data){.dataset = train};
    }
    if (j->is_validated || j->is_evaluating) {
        shuffled = batches(test, 2);
        v.dataset = shuffled;
    }
    o.validation = v;
    rc = j->is_evaluating
             ? ch_train_and_evaluate(m, d, v,
                                     &(ch_train_evaluate_options){.max_steps = 11,
                                                                  .evaluate_every = 4,
                                                                  .export_best = t_path("best"),
                                                                  .fit = o},
                                     h)
             : ch_fit(m, d, &o, h);
    ch_dataset_unref(train);
    ch_dataset_unref(shuffled);
    return rc;
}

/* Makes all variables exist, so that the memory can set them: trains on other data. */
static inline void warm_up(const job *j, ch_model *m)
{
    arrays a = new_arrays(BATCH);

    t_ok(ch_fit(m, (ch_data){.n = 2, .array = a.t},
                &(ch_fit_options){.epochs = 2,
                                  .batch = BATCH,
                                  .validation = {.n = j->is_custom ? 0 : 2,
                                                 .array = j->is_custom ? NULL : a.t}},
                NULL));
    drop_arrays(&a);
}

/* What a program leaves, as text. Numbers have all their bits. */
typedef struct outcome {
    ch_status rc;
    char      text[TEXT];
} outcome;

static inline void add(outcome *o, const char *format, ...)
{
    size_t  used = strlen(o->text);
    va_list args;

    va_start(args, format);
    vsnprintf(o->text + used, sizeof(o->text) - used, format, args);
    va_end(args);
}

static inline void add_file(outcome *o, const char *path)
{
    size_t used = strlen(o->text), n;
    FILE  *f = fopen(path, "rb");

    assert_non_null(f);
    n = fread(o->text + used, 1, sizeof(o->text) - used - 1, f);
    o->text[used + n] = '\0';
    fclose(f);
}

static inline void describe(const job *j, ch_model *m, const ch_history *h, outcome *o)
{
    float         w[MOST];
    const double *curve = NULL;
    int           n = vars_of(m, w), points = ch_history_curve(h, &curve);

    o->text[0] = '\0';
    for (int i = 0; i < n; i++)
        add(o, "%a ", (double)w[i]);
    add(o, "\n%d epochs, stopped: %s\n", ch_history_epochs(h),
        ch_history_stopped(h) != NULL ? ch_history_stopped(h) : "no");
    for (int i = 0; i < ch_history_count(h); i++) {
        add(o, "%s", ch_history_name(h, i));
        for (int e = 0; e < ch_history_epochs(h); e++)
            add(o, " %a", ch_history_at(h, ch_history_name(h, i), e));
        add(o, "\n");
    }
    for (int i = 0; i < points; i++)
        add(o, "%a ", curve[i]);
    add(o, "\n");
    add_file(o, t_path("log.csv"));
    if (j->is_evaluating)
        add_file(o, t_path("best/best.json"));
}

#endif
