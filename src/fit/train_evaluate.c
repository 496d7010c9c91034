/* fit/train_evaluate.c -- ch_train_and_evaluate: training without epochs.
 *
 * Runs ch__fit with epochs of `evaluate_every` steps, so that each evaluation is the validation
 * of an epoch. An `exporting` is the state of a callback, called after each evaluation, that
 * saves the best variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/file.h"
#include "file/folder.h"
#include "file/writer.h"
#include "fit/callback.h"
#include "fit/loop.h"
#include "fit/report/json.h"

enum { EVERY = 1000 }; /* default steps between evaluations */

typedef struct exporting {
    const char *directory; /* NULL: no export; the monitored log must exist nevertheless */
    /* The callback is needed: there is a directory, or the caller named a monitor. */
    bool       is_needed;
    ch_monitor monitor;
} exporting;

/* ---- export of the best variables ---- */

/* Returns the values of all variables of the model, by name. The caller unrefs them. */
static ch_status values_of(ch_model *m, ch_tuple **out)
{
    ch_var *const *var;
    int            n = ch_model_vars(m, &var), made = 0;
    ch_value     **value = ch__calloc((size_t)n + 1, sizeof(ch_value *));
    const char   **name = ch__calloc((size_t)n + 1, sizeof(char *));
    ch_status      rc = value == NULL || name == NULL ? ch__fail_memory("an export") : CH_OK;

    for (; made < n && rc == CH_OK; made += rc == CH_OK) {
        ch_tensor *t = NULL;

        rc = ch_var_get(var[made], &t);
        if (rc == CH_OK)
            rc = ch_value_new(CH_PLAIN, 1, &t, &value[made]);
        name[made] = ch_var_name(var[made]);
        ch_tensor_unref(t);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(n, value, name, out);
    for (int i = 0; i < made; i++)
        ch_value_unref(value[i]);
    ch__free(value);
    ch__free(name);
    return rc;
}

static ch_status path_in(const char *directory, const char *name, char *path, size_t size)
{
    if (snprintf(path, size, "%s/%s", directory, name) < (int)size)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "export_best: \"%.100s...\" is too long", directory);
}

static ch_status write_file(const char *path, const ch_bytes_builder *p)
{
    ch_writer *w = NULL;
    ch_status  rc =
        p->has_failed ? ch__fail_memory("an export") : ch__writer_open(path, NULL, &w);

    if (rc == CH_OK && (rc = ch__writer_put(w, p->at, p->n)) != CH_OK)
        ch__writer_drop(w);
    else if (rc == CH_OK)
        rc = ch__writer_commit(w);
    return rc;
}

static ch_status export_numbers(ch_training *t, const char *directory)
{
    char             path[PATH_MAX], head[48];
    ch_bytes_builder text = {0};
    ch_status        rc = path_in(directory, "best.json", path, sizeof(path));

    snprintf(head, sizeof(head), "{\"step\": %lld", (long long)ch_training_step(t));
    ch__bytes_builder_text(&text, head);
    ch__json_logs(&text, ch__training_logs(t));
    ch__bytes_builder_text(&text, "}\n");
    if (rc == CH_OK)
        rc = write_file(path, &text);
    ch__bytes_builder_drop(&text);
    return rc;
}

static ch_status export_best(ch_training *t, const char *directory)
{
    char      path[PATH_MAX];
    ch_tuple *all = NULL;
    ch_status rc = path_in(directory, "best.npz", path, sizeof(path));

    if (rc == CH_OK)
        rc = values_of(ch_training_model(t), &all);
    if (rc == CH_OK)
        rc = ch_npz_save(path, all, NULL);
    if (rc == CH_OK)
        rc = export_numbers(t, directory);
    ch_tuple_unref(all);
    return rc;
}

/* Exports the variables if this evaluation is the best. Fails if the monitored log does not
 * exist, because otherwise a wrong name would be noticed only at the end. A validation that was
 * stopped has no logs, and is not an error. */
static ch_status after_evaluation(void *self, ch_training *t, ch_event event)
{
    exporting *x = self;
    double     now = 0;
    char       names[256];

    (void)event;
    if (!ch__monitor_find(&x->monitor, t, &now)) {
        ch__training_names(t, names, sizeof(names));
        return t->stops ? CH_OK
                        : ch__fail(CH_INVALID_ARGUMENT,
                                   "train and evaluate: there is no log named \"%s\" to "
                                   "monitor; the logs are: %s",
                                   x->monitor.name, names);
    }
    if (isnan(now) || !ch__monitor_is_better(&x->monitor, now, x->monitor.best))
        return CH_OK;
    x->monitor.best = now;
    return x->directory != NULL ? export_best(t, x->directory) : CH_OK;
}

static ch_status save_best(void *self, ch_tuple **out)
{
    ch_state s = {0};

    ch__monitor_save(&((exporting *)self)->monitor, &s);
    return ch__state_end(&s, out);
}

static ch_status load_best(void *self, ch_tuple *state)
{
    return ch__monitor_load(&((exporting *)self)->monitor, state);
}

static const ch_callback_ops exporting_ops = {.name = "export_best",
                                              .events = CH_ON_EPOCH_END,
                                              .on = after_evaluation,
                                              .save = save_best,
                                              .load = load_best};

/* ---- training ---- */

/* Trains with the callbacks of the caller and, if it is needed, the callback that exports. */
static ch_status run(ch_model *m, const ch_data *train, ch_fit_options *fit,
                     const ch_fit_limits *limits, exporting *x, const void *caller,
                     ch_history **out)
{
    int           n = fit->n_callbacks;
    ch_callback **all = ch__calloc((size_t)n + 1, sizeof(ch_callback *)), *own = NULL;
    ch_status     rc =
        all == NULL ? ch__fail_memory("callbacks") : ch_callback_new(&exporting_ops, x, &own);

    if (rc == CH_OK) {
        if (n > 0)
            memcpy(all, fit->callback, (size_t)n * sizeof(ch_callback *));
        all[n] = own;
        fit->callback = all;
        fit->n_callbacks = n + (x->is_needed ? 1 : 0);
        rc = ch__fit(m, train, fit, limits, caller, out);
    }
    ch_callback_unref(own);
    ch__free(all);
    return rc;
}

static ch_status check(const ch_train_evaluate_options *opt, const ch_data *test)
{
    if (opt->max_steps < 0 || opt->evaluate_every < 0 || opt->evaluate_steps < 0 ||
        opt->fit.n_callbacks < 0 || (opt->fit.n_callbacks > 0 && opt->fit.callback == NULL))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "train and evaluate: want 0 or more for max_steps, evaluate_every, "
                        "evaluate_steps and fit.n_callbacks, and fit.callback not NULL");
    if (!ch__data_is_given(test))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "train and evaluate: there is no data to evaluate on; set `test`");
    return CH_OK;
}

/* Returns the options for ch__fit: each evaluation ends an epoch. */
static ch_fit_options fit_options(const ch_train_evaluate_options *opt, const ch_data *test)
{
    ch_fit_options fit = opt->fit;
    int64_t        every = opt->evaluate_every > 0 ? opt->evaluate_every : EVERY;
    int64_t        epochs = opt->max_steps > 0 ? (opt->max_steps - 1) / every + 1 : INT_MAX;

    fit.initial_epoch = 0;
    fit.steps_per_epoch = every;
    fit.epochs = epochs < INT_MAX ? (int)epochs : INT_MAX;
    fit.validation = *test;
    fit.validation_split = 0;
    fit.validation_steps = opt->evaluate_steps;
    fit.validation_every = 1;
    return fit;
}

ch_status ch_train_and_evaluate(ch_model *m, ch_data train, ch_data test,
                                const ch_train_evaluate_options *opt, ch_history **out)
{
    static const ch_train_evaluate_options none;
    ch_fit_limits  limits = {.ends_with_data = true, .epoch_name = "Evaluation"};
    ch_fit_options fit;
    exporting      x;
    ch_status      rc;

    opt = opt != NULL ? opt : &none;
    if (out != NULL)
        *out = NULL;
    rc = check(opt, &test);
    if (rc != CH_OK)
        return rc;
    limits.max_steps = opt->max_steps;
    fit = fit_options(opt, &test);
    x = (exporting){.directory = opt->export_best,
                    .is_needed = opt->export_best != NULL || opt->monitor != NULL};
    rc = ch__monitor_init(&x.monitor, "train and evaluate",
                          opt->monitor != NULL ? opt->monitor : "val_loss", opt->goal, 0);
    if (rc == CH_OK && opt->export_best != NULL)
        rc = ch__folder_make(opt->export_best);
    if (rc == CH_OK)
        rc = run(m, &train, &fit, &limits, &x, __builtin_return_address(0), out);
    ch__monitor_drop(&x.monitor);
    return rc;
}
